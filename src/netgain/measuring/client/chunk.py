"""What one streamed chunk of an OpenAI-compatible server says, read with a typed decoder that skips everything else."""

import msgspec

from netgain.measuring.client.sse import StreamError

_ABSENT = msgspec.Raw()  # msgspec allows no `Raw | None`


class Delta(msgspec.Struct, frozen=True, gc=False):
    """The new part of a chat message. Servers spell the reasoning channel in two ways."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _ABSENT


class Choice(msgspec.Struct, frozen=True, gc=False):
    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class CachedTokens(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Running or final counts: always totals so far, so they are never added up."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One `data:` event. `netgain` and `error` stay raw until somebody needs them."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = _ABSENT
    netgain: msgspec.Raw = _ABSENT

    def answer(self) -> str:
        """The text for the user that this chunk adds."""
        parts = ""
        for choice in self.choices or ():
            if choice.text:
                parts += choice.text
            if choice.delta is not None and choice.delta.content:
                parts += choice.delta.content
        return parts

    def aside(self) -> str:
        """Generated text of the other channels: reasoning, refusal, tool calls. Costs tokens, is not the answer."""
        parts = ""
        for choice in self.choices or ():
            delta = choice.delta
            if delta is None:
                continue
            # Some servers fill both spellings with the same text: it is one piece of reasoning.
            parts += delta.reasoning_content or delta.reasoning or ""
            parts += delta.refusal or ""
            if delta.tool_calls and bytes(delta.tool_calls) not in (b"null", b"[]"):
                parts += bytes(delta.tool_calls).decode("utf-8", "replace")
        return parts

    def finish_reason(self) -> str | None:
        return next((choice.finish_reason for choice in self.choices or () if choice.finish_reason), None)

    def failure(self) -> str | None:
        """The message of an error event in mid-stream, or None."""
        if not self.error or bytes(self.error) == b"null":
            return None
        return error_message(b'{"error":' + bytes(self.error) + b"}")


_DECODER = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Decode one event; raises StreamError with the start of what came when it is not a chunk."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = data[:200].decode("utf-8", "replace")
        raise StreamError(f"an event of the stream is not an OpenAI chunk ({error}): {shown!r}") from error


def error_message(body: bytes) -> str:
    """The message inside an error body in any of the usual shapes, else the start of the body as it is."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:300].decode("utf-8", "replace").strip() or "(empty body)"
    for key in ("error", "message", "detail"):
        while isinstance(found, dict) and found.get(key) is not None:
            found = found[key]
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()[:300]

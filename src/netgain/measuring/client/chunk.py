"""What one streamed chunk of an OpenAI-compatible server says, read with a typed decoder that skips everything else."""

from typing import NamedTuple

import msgspec

from netgain.measuring.client.sse import StreamError

MOST_TOKENS = 10**9  # of one request
_MESSAGE = 300  # characters of an error that are kept
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


class Said(NamedTuple):
    """`answer`: the text for the user that a chunk adds. `aside`: generated text of the other channels (reasoning, refusal, tool
    calls), which costs tokens and is not the answer."""

    answer: str
    aside: str
    finish_reason: str | None


class Chunk(msgspec.Struct, frozen=True):
    """One `data:` event. `netgain` and `error` stay raw until somebody needs them."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = _ABSENT
    netgain: msgspec.Raw = _ABSENT

    def said(self) -> Said:
        """What its choices say, in one pass: it is called for every token of every stream."""
        answer = aside = ""
        finish_reason = None
        for choice in self.choices or ():
            finish_reason = finish_reason or choice.finish_reason
            if choice.text:
                answer += choice.text
            delta = choice.delta
            if delta is None:
                continue
            if delta.content:
                answer += delta.content
            # Some servers fill both spellings with the same text: it is one piece of reasoning.
            if reasoning := delta.reasoning_content or delta.reasoning:
                aside += reasoning
            if delta.refusal:
                aside += delta.refusal
            if delta.tool_calls and bytes(delta.tool_calls) not in (b"null", b"[]"):
                aside += bytes(delta.tool_calls).decode("utf-8", "replace")
        return Said(answer, aside, finish_reason)

    def failure(self) -> str | None:
        """The message of an error event in mid-stream, or None."""
        if not self.error or bytes(self.error) == b"null":
            return None
        return error_message(b'{"error":' + bytes(self.error) + b"}")


def possible(tokens: int | None) -> int | None:
    """A count that a server told; None where no answer can have so many, as with -1 for "unknown"."""
    return tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else None


_DECODER = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """Decode one event; raises StreamError with the start of what came when it is not a chunk."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        shown = data[:200].decode("utf-8", "replace")
        raise StreamError(f"an event of the stream is not an OpenAI chunk ({error}): {shown!r}") from error


def error_message(body: bytes) -> str:
    """The message inside an error body in any of the usual shapes, else the start of the body as it is; in one line."""
    text = body[: 4 * _MESSAGE].decode("utf-8", "replace")
    try:
        found = msgspec.json.decode(body)
        for key in ("error", "message", "detail"):
            while isinstance(found, dict) and found.get(key) is not None:
                found = found[key]
        text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    except (msgspec.DecodeError, RecursionError, OverflowError):  # the last: a number that no JSON of ours holds
        pass
    return " ".join(text.split())[:_MESSAGE] or "(empty body)"

"""From the bytes of one exchange to its entry: parameters, lengths, block ids, timings; text only where it was asked for."""

import math
import uuid
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from netgain.measuring.client.chunk import Chunk, Usage, read_chunk
from netgain.measuring.client.sse import SSEParser, StreamError
from netgain.measuring.record.answers import Said, merged, read_event, read_whole, speaks_otherwise
from netgain.measuring.record.entry import Asked, Entry
from netgain.measuring.record.hashing import Hasher, canonical, prompt_count
from netgain.measuring.record.observation import KEPT_ANSWER_BYTES, KEPT_REQUEST_BYTES, Observation
from netgain.measuring.record.repetition import copied_share

_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
_SESSION_HEADERS = ("x-session-id", "x-conversation-id", "session-id")
_SESSION_FIELDS = ("prompt_cache_key", "conversation", "safety_identifier", "user")


class _Message(msgspec.Struct, frozen=True):
    content: Any = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Whole(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: Usage | None = None


class _Answer:
    """What an answer said; everything that could not be learned stays None."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.reasons: list[str] = []
        self.text: list[str] = []
        self.first_token_s: float | None = None
        self.error: str | None = None
        self.unread: str | None = None


def to_entry(seen: Observation, hasher: Hasher, *, with_text: bool) -> Entry:
    """Never raises for what clients and servers send: what cannot be read is said in `unread`."""
    body, unread = _request(seen)
    prompt = None if body is None else canonical(body)
    answer = _read_answer(seen)
    usage = answer.usage
    counted = usage is not None and (usage.prompt_tokens is not None or usage.completion_tokens is not None)
    cached = None if usage is None or usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens
    arrived_s = seen.arrived_s
    first_s = seen.times_s[0] if seen.times_s else None
    text = "".join(answer.text)
    return Entry(
        id=uuid.uuid4().hex,
        arrived_unix_s=seen.arrived_unix_s,
        arrived_s=arrived_s,
        method=seen.method,
        endpoint=_endpoint(seen),
        model=_text(body, "model"),
        asked=Asked() if body is None else asked_of(body),
        prompts=None if body is None else prompt_count(body),
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        cached_tokens=cached,
        output_tokens=None if usage is None else usage.completion_tokens,
        tokens_source="usage" if counted else None,
        prompt_size=None if prompt is None else len(prompt),
        blocks=None if prompt is None else hasher.blocks(prompt),
        status=seen.status,
        finish_reasons=tuple(answer.reasons) or None,
        error=seen.error or answer.error,
        head_after_s=None if seen.head_s is None else seen.head_s - arrived_s,
        first_chunk_after_s=None if first_s is None else first_s - arrived_s,
        first_token_after_s=None if answer.first_token_s is None else answer.first_token_s - arrived_s,
        ended_after_s=None if seen.ended_s is None else seen.ended_s - arrived_s,
        chunks=len(seen.times_s) or None,
        chunk_gap_s=_gaps(seen.times_s),
        answer_bytes=seen.answer_bytes if seen.status is not None else None,
        copied=None if prompt is None or not text else copied_share(prompt.decode("utf-8", "replace"), text),
        session=_named(hasher, "session", _session(seen.headers, body)),
        tenant=_named(hasher, "tenant", _first(seen.headers, _KEY_HEADERS)),
        unread=unread or answer.unread,
        request=body if with_text else None,
        answer=text if with_text and text else None,
    )


def _endpoint(seen: Observation) -> str:
    return seen.path.partition("?")[0]


def asked_of(body: Mapping[str, Any]) -> Asked:
    """The parameters that matter; a value of a wrong type is as good as none."""
    form = body.get("response_format")
    stop = body.get("stop")
    tools = body.get("tools")
    most = body.get("max_completion_tokens", body.get("max_tokens", body.get("max_output_tokens")))
    return Asked(
        max_tokens=_number(most, int),
        temperature=_number(body.get("temperature"), float),
        top_p=_number(body.get("top_p"), float),
        top_k=_number(body.get("top_k"), int),
        n=_number(body.get("n"), int),
        stream=value if isinstance(value := body.get("stream"), bool) else None,
        seeded=True if body.get("seed") is not None else None,
        stops=len(stop) if isinstance(stop, list) else 1 if isinstance(stop, str) else None,
        tools=len(tools) if isinstance(tools, list) else None,
        response_format=str(form.get("type")) if isinstance(form, dict) else None,
        logprobs=True if body.get("logprobs") not in (None, False) else None,
    )


def _request(seen: Observation) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object of the request, and why it could not be read."""
    if not seen.request_bytes:
        return None, None
    if seen.request_bytes > KEPT_REQUEST_BYTES:
        return None, f"a request of {seen.request_bytes} bytes is longer than what is read"
    if "multipart" in seen.headers.get("content-type", ""):
        return None, "a multipart request"
    try:
        found = msgspec.json.decode(_plain(b"".join(seen.request), seen.headers))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        return None, f"the request cannot be read: {error}"[:200]
    return (found, None) if isinstance(found, dict) else (None, "the request is no JSON object")


def _read_answer(seen: Observation) -> _Answer:
    answer = _Answer()
    if seen.status is None:
        return answer
    if seen.answer_bytes > KEPT_ANSWER_BYTES:
        answer.unread = f"an answer of {seen.answer_bytes} bytes is longer than what is read"
        return answer
    kind = seen.answer_headers.get("content-type", "")
    try:
        if kind.startswith("text/event-stream"):
            _read_stream(seen, answer)
        elif "json" in kind:
            other = speaks_otherwise(_endpoint(seen))
            _read_whole(_plain(b"".join(seen.pieces), seen.answer_headers), seen.status, answer, other)
    except StreamError:  # its message shows what came, which may be text
        answer.unread = "the answer cannot be read: an event of the stream is no OpenAI chunk"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        answer.unread = f"the answer cannot be read: {error}"[:200]
    return answer


def _read_whole(data: bytes, status: int, answer: _Answer, other: bool) -> None:
    if status >= 400:
        answer.error = _error_kind(data) or f"status {status}"
        return
    if not data:
        return
    if other:
        _add(read_whole(msgspec.json.decode(data, type=dict[str, Any])), None, answer)
        return
    found = msgspec.json.decode(data, type=_Whole)
    answer.usage = found.usage
    for choice in found.choices or ():
        if choice.finish_reason:
            answer.reasons.append(choice.finish_reason)
        said = choice.text if choice.message is None else choice.message.content
        if isinstance(said, str):
            answer.text.append(said)


def _error_kind(data: bytes) -> str | None:
    """Type or code of an error body. Its message is left out, since it may quote the request."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    inner = found.get("error", found) if isinstance(found, dict) else None
    if not isinstance(inner, dict):
        return None
    kinds = [str(inner[name])[:80] for name in ("type", "code") if inner.get(name) is not None]
    return ", ".join(kinds) or None


def _read_stream(seen: Observation, answer: _Answer) -> None:
    parser = SSEParser()
    unpack = _unpacker(seen.answer_headers)
    take = _take_event if speaks_otherwise(_endpoint(seen)) else _take
    for piece, at_s in zip(seen.pieces, seen.times_s, strict=True):
        for data in parser.feed(unpack(piece)):
            take(data, at_s, answer)
    for data in parser.close():
        take(data, seen.times_s[-1] if seen.times_s else seen.arrived_s, answer)


def _take_event(data: bytes, at_s: float, answer: _Answer) -> None:
    if data.strip() == b"[DONE]":
        return
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StreamError("an event is no JSON object") from error
    said = read_event(found)
    if said.failed:
        answer.error = _error_kind(data) or "an error inside the stream"
    _add(said, at_s, answer)


def _add(said: Said, at_s: float | None, answer: _Answer) -> None:
    if answer.first_token_s is None and (said.text or said.aside):
        answer.first_token_s = at_s
    if said.text:
        answer.text.append(said.text)
    if said.usage is not None:
        answer.usage = merged(answer.usage, said.usage)
    if said.reason is not None:
        answer.reasons.append(said.reason)
    if said.failed and answer.error is None:
        answer.error = "the answer says that it failed"


def _take(data: bytes, at_s: float, answer: _Answer) -> None:
    if data.strip() == b"[DONE]":
        return
    chunk: Chunk = read_chunk(data)
    if chunk.usage is not None:
        answer.usage = chunk.usage
    if chunk.failure() is not None:
        answer.error = _error_kind(data) or "an error inside the stream"
    text, aside, _ = chunk.said()
    if answer.first_token_s is None and (text or aside):
        answer.first_token_s = at_s
    if text:
        answer.text.append(text)
    answer.reasons += [choice.finish_reason for choice in chunk.choices or () if choice.finish_reason]


def _plain(data: bytes, headers: Mapping[str, str]) -> bytes:
    return _unpacker(headers)(data)


def _unpacker(headers: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """What takes the content coding off, piece by piece. Raises ValueError for a coding that is not known here."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding in ("", "identity"):
        return bytes
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"content coding {coding!r} is not read here")
    stream = zlib.decompressobj(wbits=47 if coding != "deflate" else zlib.MAX_WBITS)

    def unpack(piece: bytes) -> bytes:
        try:
            found = stream.decompress(piece, KEPT_ANSWER_BYTES)
        except zlib.error as error:
            raise ValueError(f"its {coding} coding is damaged: {error}") from error
        if stream.unconsumed_tail:
            raise ValueError("it unpacks to more than what is read")
        return found

    return unpack


def _gaps(times_s: list[float]) -> tuple[float, float, float] | None:
    gaps = sorted(after - before for before, after in pairwise(times_s))
    if not gaps:
        return None
    last = len(gaps) - 1
    return gaps[last // 2], gaps[min(last, math.ceil(0.95 * last))], gaps[last]


def _session(headers: Mapping[str, str], body: Mapping[str, Any] | None) -> str | None:
    found = _first(headers, _SESSION_HEADERS)
    if found is None and body is not None:
        found = next((value for name in _SESSION_FIELDS if isinstance(value := body.get(name), str) and value), None)
    return found


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := headers.get(name))), None)


def _named(hasher: Hasher, purpose: str, text: str | None) -> str | None:
    return None if text is None else hasher.name(purpose, text)


def _text(body: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if body is None else body.get(name)
    return value if isinstance(value, str) else None


def _number(value: object, kind: type[Any]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return kind(value)

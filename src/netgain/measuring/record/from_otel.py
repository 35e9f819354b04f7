"""OpenTelemetry traces in OTLP's JSON form, one export a line or one document: spans with GenAI attributes are requests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from netgain.measuring.record.entry import Asked, Entry
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.source import Skipped, SourceFile

_REQUEST = ("gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "gen_ai.request.id")
_LARGEST = 2**53  # beyond, and for NaN, a number means nothing here
_ENDPOINTS = {"chat": "/v1/chat/completions", "text_completion": "/v1/completions", "embeddings": "/v1/embeddings"}


def read_otel(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """Of nested spans of one call (a client's and its server's) the outermost is the request, the others are counted."""
    spans: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for found in _documents(source):
        if isinstance(found, Skipped):
            yield found
            continue
        if not isinstance(found, dict) or not isinstance(found.get("resourceSpans"), list):
            yield Skipped("JSON without resourceSpans")
            continue
        for resource in found["resourceSpans"]:
            for scope in _list(resource, "scopeSpans"):
                for span in _list(scope, "spans"):
                    attributes = _attributes(span)
                    if any(name in attributes for name in _REQUEST):
                        spans.append((span, attributes))
                    else:
                        yield Skipped("a span without GenAI attributes")
    known = {(span.get("traceId"), span.get("spanId")) for span, _ in spans}
    for span, attributes in spans:
        if (span.get("traceId"), span.get("parentSpanId")) in known:
            yield Skipped("a span inside the span of the same call")
        elif _nanoseconds(span, "startTimeUnixNano") is None:
            yield Skipped("a span without a start")
        else:
            yield _entry(span, attributes, hasher)


def _documents(source: SourceFile) -> Iterator[Any]:
    lines = [line for line in source.lines() if line.strip()]
    parsed: list[Any] = []
    bad = 0
    for line in lines:
        try:
            parsed.append(msgspec.json.decode(line))
        except (msgspec.MsgspecError, RecursionError):
            bad += 1
            parsed.append(Skipped("no JSON"))
    if bad:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            parsed = [msgspec.json.decode("\n".join(lines))]  # one document over several lines
    yield from parsed


def _entry(span: dict[str, Any], said: dict[str, Any], hasher: Hasher) -> Entry:
    start_ns, end_ns = _nanoseconds(span, "startTimeUnixNano"), _nanoseconds(span, "endTimeUnixNano")
    assert start_ns is not None
    prompt = _first(said, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    output = _first(said, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
    status = span.get("status")
    failed = "error.type" in said or (isinstance(status, dict) and status.get("code") in (2, "STATUS_CODE_ERROR"))
    operation = said.get("gen_ai.operation.name")
    reasons = said.get("gen_ai.response.finish_reasons")
    session = _text(said.get("gen_ai.conversation.id"))
    return Entry(
        id=str(span.get("spanId")),
        arrived_unix_s=start_ns / 1e9,
        endpoint=_ENDPOINTS.get(str(operation)),
        model=_text(said.get("gen_ai.request.model") or said.get("gen_ai.response.model")),
        asked=Asked(
            max_tokens=_whole(said.get("gen_ai.request.max_tokens")),
            temperature=_real(said.get("gen_ai.request.temperature")),
            top_p=_real(said.get("gen_ai.request.top_p")),
            top_k=_whole(said.get("gen_ai.request.top_k")),
            n=_whole(_first(said, "gen_ai.request.choice.count", "gen_ai.request.n")),
            stream=value if isinstance(value := said.get("gen_ai.request.stream"), bool) else None,
        ),
        prompt_tokens=_count(prompt),
        cached_tokens=_count(said.get("gen_ai.usage.cache_read.input_tokens")),
        output_tokens=_count(output),
        tokens_source="attributes of the span" if prompt is not None or output is not None else None,
        finish_reasons=tuple(map(str, reasons)) if isinstance(reasons, list) and reasons else None,
        error=str(said.get("error.type") or "the span has an error status") if failed else None,
        first_token_after_s=_real(
            _first(said, "gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")
        ),
        ended_after_s=None if end_ns is None else max(0.0, (end_ns - start_ns) / 1e9),
        session=None if session is None else hasher.name("session", session),
    )


def _attributes(span: Any) -> dict[str, Any]:
    return {
        pair["key"]: _value(pair.get("value"))
        for pair in _list(span, "attributes")
        if isinstance(pair, dict) and isinstance(pair.get("key"), str)
    }


def _value(value: Any) -> Any:
    """OTLP writes 64-bit integers as strings."""
    if not isinstance(value, dict):
        return None
    match value:
        case {"intValue": found}:
            return int(found) if str(found).lstrip("-").isdecimal() else None
        case {"doubleValue": found} | {"stringValue": found} | {"boolValue": found}:
            return found
        case {"arrayValue": dict() as inner}:
            return [_value(item) for item in _list(inner, "values")]
    return None


def _list(holder: Any, name: str) -> list[Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, list) else []


def _nanoseconds(span: dict[str, Any], name: str) -> int | None:
    text = str(span.get(name, ""))
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _first(said: dict[str, Any], *names: str) -> Any:
    return next((said[name] for name in names if said.get(name) is not None), None)


def _whole(value: object) -> int | None:
    return int(found) if (found := _real(value)) is not None else None


def _count(value: object) -> int | None:
    return whole if (whole := _whole(value)) is not None and whole >= 0 else None


def _real(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    return float(value) if good else None  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

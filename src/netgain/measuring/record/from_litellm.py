"""LiteLLM's JSON logs: one StandardLoggingPayload a line, or an array of them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from netgain.measuring.record.entry import Entry
from netgain.measuring.record.hashing import Hasher, canonical, prompt_count
from netgain.measuring.record.reading import asked_of
from netgain.measuring.record.source import Skipped, SourceFile

_ENDPOINTS = {
    "completion": "/v1/chat/completions",
    "acompletion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "atext_completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "aembedding": "/v1/embeddings",
    "responses": "/v1/responses",
    "aresponses": "/v1/responses",
}


def read_litellm(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """Requests in the order of the log."""
    for found in _objects(source):
        if isinstance(found, Skipped):
            yield found
        elif not isinstance(found, dict) or "startTime" not in found or "endTime" not in found:
            yield Skipped("JSON without startTime and endTime")
        elif (start_s := _time(found["startTime"])) is None:
            yield Skipped("startTime is no time")
        else:
            yield _entry(found, start_s, hasher)


def _objects(source: SourceFile) -> Iterator[Any]:
    lines = [line for line in source.lines() if line.strip()]
    if lines and lines[0].lstrip().startswith("["):
        try:
            whole = msgspec.json.decode("\n".join(lines))
        except (msgspec.MsgspecError, RecursionError):
            whole = None
        if isinstance(whole, list):
            yield from whole
            return
    for line in lines:
        try:
            yield msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            yield Skipped("no JSON")


def _entry(found: dict[str, Any], start_s: float, hasher: Hasher) -> Entry:
    parameters = found.get("model_parameters")
    asked: dict[str, Any] = dict(parameters) if isinstance(parameters, dict) else {}
    if isinstance(found.get("stream"), bool):
        asked.setdefault("stream", found["stream"])
    messages = found.get("messages")
    prompt_of: dict[str, Any] = {"messages": messages} if isinstance(messages, list) else {"prompt": messages}
    if "tools" in asked:
        prompt_of["tools"] = asked["tools"]
    body = {**asked, **prompt_of} if isinstance(messages, list | str) else None
    prompt = None if body is None else canonical(body)
    end_s, first_s = _time(found.get("endTime")), _time(found.get("completionStartTime"))
    counts = [_count(found.get(name)) for name in ("prompt_tokens", "completion_tokens")]
    metadata = found.get("metadata") if isinstance(found.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    tenant = metadata.get("user_api_key_hash") or metadata.get("user_api_key_team_id")
    session = found.get("trace_id") or found.get("end_user")
    response = found.get("response")
    reasons, text = _said(response)
    failed = found.get("status") == "failure" or bool(found.get("error_str"))
    streamed = asked.get("stream") is True
    return Entry(
        id=str(found.get("id") or found.get("litellm_call_id") or f"litellm-{start_s}"),
        arrived_unix_s=start_s,
        endpoint=_ENDPOINTS.get(str(found.get("call_type"))),
        model=str(found["model"]) if found.get("model") else None,
        asked=asked_of(asked),
        prompts=None if body is None else prompt_count(body),
        prompt_tokens=counts[0] if not failed else counts[0] or None,
        cached_tokens=_cached(metadata),
        output_tokens=counts[1] if not failed else counts[1] or None,
        tokens_source="LiteLLM's log" if any(count is not None for count in counts) else None,
        prompt_size=None if prompt is None else len(prompt),
        blocks=None if prompt is None else hasher.blocks(prompt),
        finish_reasons=reasons,
        error=_error_kind(found) if failed else None,
        # without streaming LiteLLM sets completionStartTime to the end
        first_token_after_s=None if first_s is None or not streamed else max(0.0, first_s - start_s),
        ended_after_s=None if end_s is None else max(0.0, end_s - start_s),
        session=None if not session else hasher.name("session", str(session)),
        tenant=None if not tenant else hasher.name("tenant", str(tenant)),
        request=body,
        answer=text,
    )


def _error_kind(found: dict[str, Any]) -> str:
    """Class and code; the message is left out, since it may quote the request."""
    about = found.get("error_information")
    if not isinstance(about, dict):
        return "failure"
    return ", ".join(str(about[name])[:80] for name in ("error_class", "error_code") if about.get(name)) or "failure"


def _said(response: object) -> tuple[tuple[str, ...] | None, str | None]:
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list):
        return None, None
    good = [choice for choice in choices if isinstance(choice, dict)]
    reasons = tuple(str(choice["finish_reason"]) for choice in good if choice.get("finish_reason"))
    texts = [
        message.get("content") if isinstance(message := choice.get("message"), dict) else choice.get("text")
        for choice in good
    ]
    return reasons or None, "".join(text for text in texts if isinstance(text, str)) or None


def _cached(metadata: dict[str, Any]) -> int | None:
    usage = metadata.get("usage_object")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _time(value: object) -> float | None:
    """Seconds since 1970, given as a number or as ISO 8601."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            return None
    return None

"""LiteLLM's JSON logs: StandardLoggingPayloads, one a line, in an array, or spread over lines as LiteLLM prints them."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from netgain.measuring.record.answers import response_reason, token_count
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
    "anthropic_messages": "/v1/messages",
    "aanthropic_messages": "/v1/messages",
}
_PLAIN = ("text_completion", "atext_completion", "embedding", "aembedding")
_REDACTED = "redacted-by-litellm"


def read_litellm(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """Requests in the order of the log. A call that is logged twice, as text completions are, is one request."""
    seen: set[tuple[str, ...]] = set()
    for found in _objects(source):
        if isinstance(found, Skipped):
            yield found
        elif not isinstance(found, dict) or "startTime" not in found or "endTime" not in found:
            yield Skipped("JSON without startTime and endTime")
        elif (start_s := _time(found["startTime"])) is None:
            yield Skipped("startTime is no time")
        elif found.get("cache_hit") is True:
            yield Skipped("answered from LiteLLM's own cache")
        elif _call(found) in seen:
            yield Skipped("the same call again")
        else:
            if found.get("litellm_call_id"):
                seen.add(_call(found))
            yield _entry(found, start_s, hasher)


def _call(found: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(found.get(name)) for name in ("litellm_call_id", "status", "startTime", "endTime"))


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
    printed: list[str] | None = None  # the lines of an object over several lines, from its brace to the one below it
    for line in lines:
        if printed is not None and line.rstrip() != "}" and (line[0].isspace() or line[0] == "]"):
            printed.append(line)
            continue
        if printed is not None and line.rstrip() == "}":
            yield _decoded("\n".join((*printed, line)))
            printed = None
            continue
        if printed is not None:
            yield Skipped("no JSON")
        printed = [line] if line.rstrip() == "{" else None
        if printed is None:
            yield _decoded(line)
    if printed is not None:
        yield Skipped("no JSON")


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return json.loads(text)  # takes NaN, which Python's own encoder writes
    except (ValueError, RecursionError):
        return Skipped("no JSON")


def _entry(found: dict[str, Any], start_s: float, hasher: Hasher) -> Entry:
    parameters = found.get("model_parameters")
    asked: dict[str, Any] = dict(parameters) if isinstance(parameters, dict) else {}
    if isinstance(found.get("stream"), bool):
        asked.setdefault("stream", found["stream"])
    prompt_of = _prompt(found)
    if prompt_of is not None and "tools" in asked:
        prompt_of["tools"] = asked["tools"]
    body = None if prompt_of is None else {**asked, **prompt_of}
    prompt = None if body is None else canonical(body)
    end_s, first_s = _time(found.get("endTime")), _time(found.get("completionStartTime"))
    counts = [token_count(found.get(name)) for name in ("prompt_tokens", "completion_tokens")]
    if not any(counts):  # LiteLLM writes 0 where no usage came
        counts = [None, None]
    metadata = found.get("metadata") if isinstance(found.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    tenant = metadata.get("user_api_key_hash") or metadata.get("user_api_key_team_id")
    # a trace is one call with its retries; until 2025 it was also where a session's id was put
    session = found.get("session_id" if "session_id" in found else "trace_id") or found.get("end_user")
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
        prompt_tokens=counts[0],
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


def _prompt(found: dict[str, Any]) -> dict[str, Any] | None:
    """Messages, or the texts that LiteLLM wraps in messages for endpoints without; None for those it has hidden."""
    messages = found.get("messages")
    if isinstance(messages, str):
        return None if messages == _REDACTED else {"prompt": messages}
    if not isinstance(messages, list):
        return None
    texts = [message.get("content") if isinstance(message, dict) else message for message in messages]
    if _REDACTED in texts:
        return None
    if found.get("call_type") in _PLAIN and texts and all(isinstance(text, str) for text in texts):
        return {"prompt": texts[0] if len(texts) == 1 else texts}
    return {"messages": messages}


def _said(response: object) -> tuple[tuple[str, ...] | None, str | None]:
    """Finish reasons and text of a chat completion, a completion, or a Responses object."""
    if not isinstance(response, dict):
        return None, None
    good = _dicts(response.get("choices"))
    reasons = [str(choice["finish_reason"]) for choice in good if choice.get("finish_reason")]
    texts = [
        message.get("content") if isinstance(message := choice.get("message"), dict) else choice.get("text")
        for choice in good
    ]
    if response.get("object") == "response":
        texts = [part.get("text") for item in _dicts(response.get("output")) for part in _dicts(item.get("content"))]
        reasons = [reason] if (reason := response_reason(response)) else []
    return tuple(reasons) or None, "".join(text for text in texts if isinstance(text, str)) or None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _cached(metadata: dict[str, Any]) -> int | None:
    usage = metadata.get("usage_object")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return token_count(details.get("cached_tokens")) if isinstance(details, dict) else None


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

"""Answers of two other APIs that OpenAI-compatible servers have, Responses and Messages, in the words of chat completions."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from netgain.measuring.client.chunk import CachedTokens, Usage

RESPONSES = "/responses"
MESSAGES = "/messages"

_REASONS = {"max_output_tokens": "length", "max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop"}
_TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
_ASIDE_EVENTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALL_EVENTS = ("response.function_call_arguments.delta",)


class Said(msgspec.Struct, frozen=True):
    """What a whole answer, or one event of a stream, adds; `aside` is generated text that is not the answer."""

    text: str = ""
    aside: bool = False
    usage: Usage | None = None
    reason: str | None = None
    failed: bool = False


def speaks_otherwise(path: str) -> bool:
    """Whether this endpoint's answers are read here."""
    return path.endswith((RESPONSES, MESSAGES))


def read_whole(found: Mapping[str, Any]) -> Said:
    """A Responses or Messages object."""
    if found.get("object") == "response":
        parts = [part for item in _dicts(found.get("output")) for part in _dicts(item.get("content"))]
        return Said(
            _texts(parts), False, _usage(found.get("usage")), response_reason(found), found.get("status") == "failed"
        )
    return Said(
        _texts(_dicts(found.get("content"))), False, _usage(found.get("usage")), _reason(found.get("stop_reason"))
    )


def read_event(found: Mapping[str, Any]) -> Said:
    """One event of a stream of either API; what adds nothing is an empty one."""
    kind = found.get("type")
    delta = found.get("delta")
    match kind:
        case str() if kind in _TEXT_EVENTS:
            return Said(delta if isinstance(delta, str) else "")
        case str() if kind in _ASIDE_EVENTS or kind in _CALL_EVENTS:
            return Said(aside=bool(delta))
        case "response.completed" | "response.incomplete" | "response.failed":
            whole = found.get("response")
            return msgspec.structs.replace(read_whole(whole), text="") if isinstance(whole, dict) else Said()
        case "message_start":
            message = found.get("message")
            return Said(usage=_usage(message.get("usage")) if isinstance(message, dict) else None)
        case "content_block_delta" if isinstance(delta, dict):
            text = delta.get("text")
            return Said(text) if isinstance(text, str) else Said(aside=True)
        case "message_delta":
            reason = _reason(delta.get("stop_reason")) if isinstance(delta, dict) else None
            return Said(usage=_usage(found.get("usage")), reason=reason)
        case "error":
            return Said(failed=True)
    return Said()


def merged(before: Usage | None, now: Usage) -> Usage:
    """Messages give the prompt's count at the beginning of a stream, and the answer's at its end."""
    if before is None:
        return now
    return Usage(
        prompt_tokens=before.prompt_tokens if now.prompt_tokens is None else now.prompt_tokens,
        completion_tokens=before.completion_tokens if now.completion_tokens is None else now.completion_tokens,
        prompt_tokens_details=now.prompt_tokens_details or before.prompt_tokens_details,
    )


def response_reason(found: Mapping[str, Any]) -> str | None:
    """Why a Responses object ended."""
    details = found.get("incomplete_details")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        return _reason(details["reason"])
    return "stop" if found.get("status") == "completed" else None


def _reason(found: object) -> str | None:
    return _REASONS.get(found, found) if isinstance(found, str) else None


def _usage(found: object) -> Usage | None:
    if not isinstance(found, dict):
        return None
    details = found.get("input_tokens_details")
    cached = token_count(details.get("cached_tokens")) if isinstance(details, dict) else None
    prompt = token_count(found.get("input_tokens"))
    if (
        "cache_read_input_tokens" in found or "cache_creation_input_tokens" in found
    ):  # Messages count these beside the others
        cached = token_count(found.get("cache_read_input_tokens"))
        prompt = (
            None
            if prompt is None
            else prompt + (cached or 0) + (token_count(found.get("cache_creation_input_tokens")) or 0)
        )
    return Usage(prompt, token_count(found.get("output_tokens")), None if cached is None else CachedTokens(cached))


def token_count(value: object) -> int | None:
    """A number of tokens as servers write them; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def _texts(parts: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> str:
    return "".join(text for part in parts if isinstance(text := part.get("text"), str))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

"""Messages as clients of OpenAI's API send them -> as chat templates read them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_REASONING = ("reasoning_content", "reasoning", "thinking")
_NINE = re.compile(r"length\s*!=\s*9\b")  # how Mistral's templates check the ids of calls


def for_template(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """Copies in which arguments of calls are objects, a result names its function, and a thought has every usual name.

    A template that takes call ids of nine characters only gets such ids, made from the ones in the messages.
    """
    short = _NINE.search(source) is not None
    names: dict[Any, Any] = {}
    prepared = []
    for message in messages:
        turn = dict(message)
        calls = turn.get("tool_calls")
        if isinstance(calls, Sequence) and not isinstance(calls, str) and calls:
            turn["tool_calls"] = [_call(call, short) for call in calls]
            turn["content"] = "" if turn.get("content") is None else turn["content"]
            for before, after in zip(calls, turn["tool_calls"], strict=True):
                if isinstance(before, Mapping) and isinstance(after.get("function"), Mapping):
                    names[str(before.get("id"))] = after["function"].get("name")
        thought = next((turn[name] for name in _REASONING if turn.get(name) is not None), None)
        if thought is not None:
            turn = {**turn, "thinking": thought, "reasoning": thought, "reasoning_content": thought}
        call_id = turn.get("tool_call_id")
        if call_id is not None:
            if turn.get("name") is None and names.get(str(call_id)) is not None:
                turn["name"] = names[str(call_id)]
            if short:
                turn["tool_call_id"] = _nine(str(call_id))
        prepared.append(turn)
    return prepared


def with_text_arguments(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The same for templates that put the arguments of calls into their text as they are."""
    return [
        {**message, "tool_calls": [_as_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _call(call: Any, short: bool) -> Any:
    if not isinstance(call, Mapping):
        return call
    call = {"type": "function", **call}
    if short and isinstance(call.get("id"), str):
        call["id"] = _nine(call["id"])
    function = call.get("function")
    if isinstance(function, Mapping):
        call["function"] = {**function, "arguments": _object(function.get("arguments"))}
    return call


def _object(arguments: Any) -> Any:
    """Arguments as an object where they are one; what is broken stays as it is."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments
    return arguments


def _as_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function.get("arguments"), ensure_ascii=False)}}


def _nine(call_id: str) -> str:
    """Nine letters and digits that stand for an id, itself if it is one."""
    if re.fullmatch(r"[a-zA-Z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]

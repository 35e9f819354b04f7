"""Tools for models whose chat template knows none: offered in the system turn, calls and results as text of their turns.

The wording is our own; the form of a call is the one that the model's reader of calls looks for.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from netgain.serving.api.parsing.tools import ToolForm

Turn = dict[str, Any]


def knows_tools(template_source: str) -> bool:
    """Whether a chat template shows tools and calls by itself."""
    return re.search(r"\btools\b", template_source) is not None


def with_tools_as_text(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]], form: ToolForm) -> list[Turn]:
    """The same conversation without fields that such a template would pass over."""
    written = [_as_text(turn, form) for turn in turns]
    if not tools:
        return written
    offer = _offer(tools, form)
    if written and written[0]["role"] == "system":
        return [{**written[0], "content": f"{written[0]['content']}\n\n{offer}"}, *written[1:]]
    return [{"role": "system", "content": offer}, *written]


def _offer(tools: Sequence[Mapping[str, Any]], form: ToolForm) -> str:
    key = "parameters" if form.bare else "arguments"
    example = f'{{"name": "<name of a function>", "{key}": {{<its arguments>}}}}'
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You may call these functions, each given with the JSON schema of its arguments:\n"
        f"{functions}\n"
        f"To call one, answer with nothing but {_written(example, form)}. Otherwise answer as usual."
    )


def _as_text(turn: Turn, form: ToolForm) -> Turn:
    calls = turn.get("tool_calls")
    plain = {key: value for key, value in turn.items() if key not in ("tool_calls", "tool_call_id")}
    if calls:
        key = "parameters" if form.bare else "arguments"
        functions = [call["function"] for call in calls]
        lines = [
            _written(json.dumps({"name": one["name"], key: _object(one["arguments"])}, ensure_ascii=False), form)
            for one in functions
        ]
        plain["content"] = "\n".join(filter(None, [turn["content"], *lines]))
    return plain


def _object(arguments: str) -> Any:
    """The object that the JSON text stands for; what stands for none stays text."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _written(call: str, form: ToolForm) -> str:
    if form.bare:
        return call
    return f"{form.opener}\n{call}\n{form.closer}" if form.closer else f"{form.opener}[{call}]"

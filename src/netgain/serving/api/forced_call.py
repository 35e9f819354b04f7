"""A grammar that leaves a model nothing but tool calls, written as its family writes them, so that the same reader finds them."""

import json
from collections.abc import Sequence
from typing import Any

from netgain.serving.api.chat_protocol import Function
from netgain.serving.api.parsing.tools import ToolForm
from netgain.serving.engine.request import Grammar
from netgain.serving.model.tokenizer import Tokenizer

_ARGS = "[ARGS]"
_COMPACT = {"whitespace_flexible": False, "key_separator": ": ", "item_separator": ", "}


def forced_call(form: ToolForm, functions: Sequence[Function], tokenizer: Tokenizer, several: bool) -> Grammar:
    """One call of one of `functions`, or with `several` one or more of any, and nothing else; arguments follow the schema.

    Lark's notation, as llguidance reads it: a control token stands as its id, since its spelling is not that token.
    """

    def marker(spelling: str) -> str:
        number = tokenizer.markers.get(spelling)
        return f"<[{number}]>" if number is not None and number in tokenizer.control_ids else json.dumps(spelling)

    named = form.named and _ARGS in tokenizer.markers
    rules = []
    for at, function in enumerate(functions):
        schema = {**_declared(function.parameters), "x-guidance": _COMPACT}
        name = json.dumps(function.name)
        if named:
            rules.append(f"call_{at}: {marker(form.opener)} {name} {marker(_ARGS)} args_{at}")
        else:
            key = "parameters" if form.bare else "arguments"
            head = json.dumps(f'{{"name": {name}, "{key}": ')
            rules.append(f'call_{at}: {head} args_{at} "}}"')
        rules.append(f"args_{at}: %json {json.dumps(schema, ensure_ascii=False)}")
    call = " | ".join(f"call_{at}" for at in range(len(functions)))
    if named:
        start = "call+" if several else "call"
    elif form.bare:
        start = f"call ({json.dumps(form.separator + ' ')} call)*" if several else "call"
    elif form.closer:
        one = f'{marker(form.opener)} "\\n" call "\\n" {marker(form.closer)}'
        start = f'{one} ("\\n" {one})*' if several else one
    else:
        start = f'{marker(form.opener)} "[" call (", " call)* "]"' if several else f'{marker(form.opener)} "[" call "]"'
    return Grammar(kind="lark", text="\n".join([f"start: {start}", f"call: {call}", *rules]))


def _declared(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The schema of a call's arguments: none but those that are declared, unless it says otherwise."""
    schema = parameters or {"type": "object", "properties": {}}
    combined = {"allOf", "anyOf", "oneOf", "$ref", "patternProperties"} & schema.keys()
    return schema if combined or "properties" not in schema else {"additionalProperties": False, **schema}

"""One tool call as models write it in JSON: a name, and arguments under one of two keys."""

import json
import random
import string
from collections.abc import Mapping
from typing import NamedTuple

from netgain.serving.api.parsing.json_text import value
from netgain.serving.api.parsing.source import Source

ARGUMENT_KEYS = ("arguments", "parameters")


class Call(NamedTuple):
    """`arguments` is the JSON text of an object."""

    name: str
    arguments: str


def call_of(fields: Mapping[str, str], *, needs_arguments: bool = False) -> Call | None:
    """The call that an object (JSON text by key) describes; None when it describes none."""
    name = _text(fields.get("name", ""))
    if not name or fields.get("type", '"function"') != '"function"':
        return None
    written = next((fields[key] for key in ARGUMENT_KEYS if key in fields), None)
    if written is None and needs_arguments:
        return None
    arguments = _arguments(written or "null")
    return None if arguments is None else Call(name, arguments)


def openai_id(source: random.Random) -> str:
    """As OpenAI writes them."""
    return f"call_{source.getrandbits(96):024x}"


def mistral_id(source: random.Random) -> str:
    """Nine letters or digits, the only ids that Mistral's templates take back in the history."""
    return "".join(source.choices(string.ascii_letters + string.digits, k=9))


def _arguments(written: str) -> str | None:
    """An object as it was written; some models put it into a string, or write null for none."""
    if written == "null":
        return "{}"
    if written.startswith('"'):
        written = (_text(written) or "").strip(" \t\n\r")
        if not _is_json(written):
            return None
    return written if written.startswith("{") else None


def _is_json(text: str) -> bool:
    source = Source()
    source.add(text)
    source.end()
    try:
        next(reading := value(source))
    except StopIteration as end:
        return bool(end.value) and not source.rest()
    reading.close()
    return False


def _text(written: str) -> str | None:
    """The string that JSON text stands for; None when it is no string, or holds half a surrogate pair."""
    if not written.startswith('"'):
        return None
    text: str = json.loads(written)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text

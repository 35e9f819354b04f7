"""JSON read from text that still grows, strictly (RFC 8259), given up at the first character that cannot belong to it.

Values are kept as they were written, so that numbers and key order reach the client untouched.
"""

import json
import re
from collections.abc import Collection, Mapping

from netgain.serving.api.parsing.source import Reading, Source

MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = re.compile(r"[0-9a-fA-F]*")
_WORD = re.compile(r"[-+.0-9a-zA-Z]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def space(source: Source) -> Reading[None]:
    """Read over white space."""
    yield from source.all(_SPACE)


def object_fields(
    source: Source, known: Collection[str] | None = None, depth: int = 0
) -> Reading[Mapping[str, str] | None]:
    """Read an object: its values as JSON text by key. None, standing anywhere, when there is none.

    With `known`, an object that holds any other key is not wanted either.
    """
    if depth > MAX_DEPTH or not (yield from source.skip("{")):
        return None
    fields: dict[str, str] = {}
    yield from space(source)
    if (yield from source.skip("}")):
        return fields
    while True:
        start = source.at
        if not (yield from _string(source)):
            return None
        key: str = json.loads(source.since(start))
        if known is not None and key not in known:
            return None
        yield from space(source)
        if not (yield from source.skip(":")):
            return None
        yield from space(source)
        start = source.at
        if not (yield from value(source, depth + 1)):
            return None
        fields[key] = source.since(start)
        yield from space(source)
        if (yield from source.skip("}")):
            return fields
        if not (yield from source.skip(",")):
            return None
        yield from space(source)


def value(source: Source, depth: int = 0) -> Reading[bool]:
    """Read one value; False, standing anywhere, when there is none."""
    match (yield from source.peek()):
        case "{":
            return (yield from object_fields(source, None, depth)) is not None
        case "[":
            return (yield from _array(source, depth))
        case '"':
            return (yield from _string(source))
    return _SCALAR.fullmatch((yield from source.all(_WORD))) is not None


def _array(source: Source, depth: int) -> Reading[bool]:
    if depth > MAX_DEPTH or not (yield from source.skip("[")):
        return False
    yield from space(source)
    if (yield from source.skip("]")):
        return True
    while True:
        if not (yield from value(source, depth + 1)):
            return False
        yield from space(source)
        if (yield from source.skip("]")):
            return True
        if not (yield from source.skip(",")):
            return False
        yield from space(source)


def _string(source: Source) -> Reading[bool]:
    if not (yield from source.skip('"')):
        return False
    while True:
        yield from source.all(_PLAIN)
        if (yield from source.skip('"')):
            return True
        if not (yield from source.skip("\\")):
            return False
        escape = yield from source.peek()
        source.at += len(escape)
        if escape == "u":
            for _ in range(4):
                if not _HEX.fullmatch((yield from source.peek()) or "-"):
                    return False
                source.at += 1
        elif not escape or escape not in '"\\/bfnrt':
            return False

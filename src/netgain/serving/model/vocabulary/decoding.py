"""What a token's spelling means in bytes, from a tokenizer.json's decoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from netgain.errors import UsageError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = "ByteLevel, Metaspace, and sequences of Replace (of a string), ByteFallback, Fuse and Strip"


class Decoding(NamedTuple):
    """`of` gives a token's bytes; at the start of a text, `leading` is taken off once."""

    of: Callable[[str], bytes]
    leading: bytes


def decoding_of(decoder: Mapping[str, Any], where: str) -> Decoding:
    """Raises UsageError naming a decoder that is not supported."""
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        table = byte_alphabet()
        return Decoding(lambda spelling: _byte_level(spelling, table), b"")
    replaced: list[tuple[str, str]] = []
    fallback = fused = False
    leading = ""
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old and not fallback:
                replaced.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)} if old and not fallback:
                replaced.append((old, " "))
                leading = " " if step.get("prepend_scheme") != "never" else ""
            case {"type": "ByteFallback"}:
                fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(content), "start": 0 | 1 as start, "stop": 0} if fused:
                leading = content * start
            case _:
                raise UsageError(f"{where}: decoder {step.get('type')} is not supported here; supported: {_SUPPORTED}")
    return Decoding(lambda spelling: _pieces(spelling, replaced, fallback), leading.encode())


def byte_alphabet() -> dict[str, int]:
    """The printable stand-in that byte-level vocabularies use for every byte: itself where printable, else from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [code for code in range(256) if code not in shown]
    return {chr(code): code for code in shown} | {chr(0x100 + at): code for at, code in enumerate(hidden)}


def _byte_level(spelling: str, table: Mapping[str, int]) -> bytes:
    return b"".join(bytes([table[letter]]) if letter in table else letter.encode() for letter in spelling)


def _pieces(spelling: str, replaced: list[tuple[str, str]], fallback: bool) -> bytes:
    for old, new in replaced:
        spelling = spelling.replace(old, new)
    byte = _BYTE.fullmatch(spelling) if fallback else None
    return spelling.encode() if byte is None else bytes([int(byte.group(1), 16)])

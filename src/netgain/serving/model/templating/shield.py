"""Keeps whatever a client sends from spelling a model's markers: a guard character stands before every place where it could."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from netgain.serving.model.tokenizer import Tokenizer


def shield(value: Any, tokenizer: Tokenizer, guard: str) -> Any:
    """A copy whose every string, at any depth and also as a key, cannot spell a marker."""
    if isinstance(value, str):
        return tokenizer.guarded(value, guard)
    if isinstance(value, Mapping):
        return {
            tokenizer.guarded_name(str(key), guard): item
            if _is_structure(key, item)
            else shield(item, tokenizer, guard)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [shield(item, tokenizer, guard) for item in value]
    return value


def strings(value: Any) -> list[str]:
    """Every string in a value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, Sequence):
        return [text for item in value for text in strings(item)]
    return []


def _is_structure(key: str, value: Any) -> bool:
    """Whether a value is a role or a type, which templates put inside their markers, and no free text."""
    return key in ("role", "type") and isinstance(value, str) and re.fullmatch(r"[\w-]{1,64}", value) is not None

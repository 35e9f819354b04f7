"""Typed fields of a model's files: whatever stands in them, the caller gets a value of the right kind or a UsageError that
names file, field and value."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netgain.errors import UsageError


@dataclass(frozen=True)
class Fields:
    """`values` as read from `where`. A field that is null counts as missing; a missing one without a default is refused."""

    where: Path
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise self.wrong(key, "a number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return value

    def table(self, key: str) -> Fields:
        """The object below `key`; empty where there is none."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return Fields(self.where, value)

    def texts(self, key: str, count: int) -> tuple[str, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != count or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"a list of {count} texts", value)
        return tuple(value)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(key, f"a list of {count} numbers", value)
        return tuple(Fields(self.where, {key: item}).number(key) for item in value)

    def ids(self, key: str) -> list[int]:
        """Token ids written as nothing, one number or a list."""
        value = self.values.get(key)
        if value is None:
            return []
        ids = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise UsageError(f"{self.where}: {key}: token ids {_shown(value)} are not whole numbers")
        return ids

    def refuse_unless(self, key: str, *allowed: Any) -> None:
        """Refuse a field by name unless it is missing or one of the values that this engine computes."""
        if key in self and self.values[key] not in allowed:
            what = f"supported: {allowed[0]!r}" if allowed else "supported: none"
            raise UsageError(f"{self.where}: {key} = {_shown(self.values[key])} is not supported; {what}")

    def wrong(self, key: str, expected: str, value: Any) -> UsageError:
        return UsageError(
            f"{self.where}: {key} is {'missing' if value is None else _shown(value)}, expected {expected}"
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UsageError names a missing or broken file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds a JSON {type(values).__name__}, expected an object")
    return values


def shortest(value: float) -> float:
    """The decimal that a float32 was written from: GGUF stores 1e-5 as 9.999999747378752e-06."""
    try:
        return float(str(np.float32(struct.unpack("<f", struct.pack("<f", value))[0])))
    except (OverflowError, struct.error):
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

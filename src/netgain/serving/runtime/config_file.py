"""Configuration from where users write it: a YAML file, and single settings on top of it (`engine.cache.kv_tokens=4096`)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from netgain.errors import UsageError
from netgain.secrecy import without_secrets

C = TypeVar("C", bound=BaseModel)

# what the parser raises: ValueError for bad UTF-8 and for text that looks like a date or number and is none
_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)


def load_config(
    kind: type[C], file: Path | None = None, settings: Iterable[str] = (), named: Mapping[str, Any] | None = None
) -> C:
    """`kind` from `file` (None: all defaults), with each `a.b=value` of `settings` on top, later ones winning, and then
    `named`, which maps `a.b` to a value as it is.

    Values in `settings` are YAML, so numbers, true, null and lists are what they look like. Raises UsageError naming what
    is wrong.
    """
    tree = {} if file is None else _read(file)
    for setting in settings:
        _put(tree, *_parse(setting))
    for path, value in (named or {}).items():
        _put(tree, path, value)
    return check_config(kind, tree)


def check_config(kind: type[C], tree: Mapping[str, Any]) -> C:
    """`kind` from plain values. Raises UsageError naming the setting, and the nearest one that exists for an unknown name."""
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as error:
        raise UsageError("; ".join(_line(fault) for fault in error.errors(include_url=False))) from error


def to_yaml(config: BaseModel) -> str:
    """The whole effective configuration; `load_config` reads it back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except _UNREADABLE as error:
        raise UsageError(f"{file} is not valid YAML: {_said(error)}") from None  # it quotes the file
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError(f"{file} must hold a mapping of settings, not {type(tree).__name__}")
    return tree


def _parse(setting: str) -> tuple[str, Any]:
    path, separator, text = setting.partition("=")
    if not separator or not all(path.strip().split(".")):
        raise UsageError(
            f"{without_secrets(repr(setting))} is no setting; write NAME=VALUE, for example engine.cache.kv_tokens=4096"
        )
    try:
        return path.strip(), yaml.safe_load(text)
    except _UNREADABLE as error:
        shown = without_secrets(repr(setting))
        raise UsageError(f"the value in {shown} cannot be read: {_said(error)}") from None  # it quotes the value


def _said(error: Exception) -> str:
    return without_secrets(" ".join(str(error).split()))


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{path!r} goes below {name!r}, which has the plain value {without_secrets(repr(inner))}")
        tree = inner
    tree[last] = value


def _line(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    cause = fault.get("ctx", {}).get("error")
    got = "" if cause is not None or fault["type"] == "missing" else f", not {without_secrets(repr(fault['input']))}"
    return f"{where}: {message}{got}" if where else f"{message}{got}"

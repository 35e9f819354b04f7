"""What a verdict advises to run: the command, its switches, and the same as a file for the engine's --config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import yaml

from netgain.deciding.verdict.document import Deployable

_NAMED = {
    "--speculation": "engine.speculation.method",
    "--host": "host",
    "--port": "port",
}  # as `netgain serve` has them


def deployable(
    engine: str,
    advises: Literal["candidate", "baseline"],
    command: Sequence[str],
    flags: Sequence[str],
    checked_with: Sequence[str],
    note: str | None = None,
) -> Deployable:
    """`command`: as a user would type it; `flags`: its part that the technique brought. Without `checked_with` neither is
    given: a switch that never started the engine is not deployable."""
    if not checked_with and advises == "candidate":
        told = note or f"the switches of this technique were never used to start {engine}, so no command is given"
        return Deployable(engine=engine, advises=advises, note=told)
    write = _FILES.get(engine)
    return Deployable(
        engine=engine,
        advises=advises,
        flags=tuple(flags) if advises == "candidate" else (),
        command=tuple(command),
        config_file=None if write is None else write(command),
        checked_with=tuple(checked_with),
        note=note,
    )


def netgain_file(command: Sequence[str]) -> str | None:
    """The settings of `netgain serve MODEL ...` as the YAML that its --config reads; None where the command has an option that
    is no setting."""
    words = list(command)
    if words[:2] != ["netgain", "serve"]:
        return None
    tree: dict[str, Any] = {}
    words = words[2:]
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            _put(tree, "engine.model.source", word)
        elif word == "--set" and words:
            name, equals, value = words.pop(0).partition("=")
            _put(tree, name, yaml.safe_load(value) if equals else True)
        elif name in _NAMED and (equals or words):
            _put(tree, _NAMED[name], yaml.safe_load(value if equals else words.pop(0)))
        else:
            return None
    return yaml.safe_dump(tree, sort_keys=False)


def _put(tree: dict[str, Any], path: str, value: object) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[last] = value


_FILES: Mapping[str, Callable[[Sequence[str]], str | None]] = {"netgain": netgain_file}

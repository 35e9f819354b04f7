"""What a verdict advises to run: the command, its switches, and, for netgain, the same as a file for its --config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import yaml

from netgain.deciding.verdict.document import Deployable

_NAMED = {
    "--host": "host",
    "--port": "port",
    "--dtype": "engine.model.dtype",
    "--kv-dtype": "engine.model.kv_dtype",
    "--activations": "engine.model.activations",
    "--speculation": "engine.speculation.method",
    "--draft": "engine.speculation.draft",
    "--kv-tier": "engine.kv.tiers",
    "--kv-policy": "engine.kv.policy",
    "--records": "records",
    "--api-keys": "auth.keys_file",
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
    is no setting. As there, options of their own win over --set wherever they stand."""
    words = list(command)
    if words[:2] != ["netgain", "serve"]:
        return None
    tree: dict[str, Any] = {}
    named: dict[str, Any] = {}
    words = words[2:]
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            named["engine.model.source"] = word
            continue
        if name not in ("--set", *_NAMED) or not (equals or words):
            return None
        given = value if equals else words.pop(0)
        if name == "--set":
            path, _, text = given.partition("=")
            _put(tree, path.strip(), yaml.safe_load(text))
        elif name == "--kv-tier":
            named.setdefault(_NAMED[name], []).append(given)
        else:
            named[_NAMED[name]] = int(given) if name == "--port" and given.isdecimal() else given
    for path, own in named.items():
        _put(tree, path, own)
    return yaml.safe_dump(tree, sort_keys=False)


def _put(tree: dict[str, Any], path: str, value: object) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[last] = value


_FILES: Mapping[str, Callable[[Sequence[str]], str | None]] = {"netgain": netgain_file}

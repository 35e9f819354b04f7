"""Arms that only the user knows how to start: shell commands in a YAML or TOML file, each with a time limit."""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import yaml

from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine
from netgain.plain_file import read_plain

TIMEOUTS_S: Mapping[str, float] = {"start": 1800.0, "stop": 600.0, "reset": 120.0, "observe": 10.0}


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command line for `sh -c`, and how long it may take (None: TIMEOUTS_S)."""

    run: str
    timeout_s: float | None = None


class Hooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an arm is operated. Every hook finds NETGAIN_ARM, NETGAIN_HOOK, NETGAIN_FLAGS (the engine's flags of this arm, quoted
    for a shell) and NETGAIN_URL and NETGAIN_PORT in its environment; `stop` has the latter two only where the file names the url.

    `url`: where it answers, `{arm}` standing for its name; without it `start` must print {"url": "..."} as its last line.
    `observe` prints a JSON object with `cpu_s`, `resident_bytes` and `processes`. `health`: the path that answers 200 once
    requests are served. `engine` is what serves there, if it is one whose metrics and reset routes are known. `devices`: how
    many the arm occupies (None: nobody said).
    """

    start: Hook
    stop: Hook
    reset: Hook | None = None
    observe: Hook | None = None
    url: str | None = None
    health: str = "/v1/models"
    engine: Engine | None = None
    devices: int | None = None
    environment: dict[str, str] = {}

    def timeout_s(self, name: str) -> float:
        hook: Hook | None = getattr(self, name)
        return TIMEOUTS_S[name] if hook is None or hook.timeout_s is None else hook.timeout_s


def read_hooks(path: Path) -> Hooks:
    """Raises UsageError with the place in the file."""
    return hooks_from(read_tree(path, "hooks"), str(path))


def read_tree(path: Path, what: str) -> Any:
    """The names and values of a YAML or TOML file. Raises UsageError with the place in it."""
    try:
        text = read_plain(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the {what} in {path} cannot be read ({error})") from error
    try:
        return tomllib.loads(text) if path.suffix.lower() == ".toml" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        told = " ".join(str(error).split())
        raise UsageError(f"{path} is no {'TOML' if path.suffix.lower() == '.toml' else 'YAML'} ({told})") from error


def check_fields(tree: Mapping[Any, Any], known: Sequence[str], told_in: str) -> None:
    """Raises UsageError with the nearest valid name."""
    for name in tree:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"{told_in} has an unknown field {name!r}: {hint}known are {', '.join(known)}")


def hooks_from(tree: Any, told_in: str, also: Sequence[str] = ()) -> Hooks:
    """From names and values; a hook may be a command line alone. `also`: names that the caller has read. Raises UsageError
    naming the field."""
    if not isinstance(tree, dict):
        raise UsageError(f"{told_in} does not name hooks; give at least start and stop")
    check_fields(tree, [*(field.name for field in msgspec.structs.fields(Hooks)), *also], told_in)
    for name in TIMEOUTS_S:
        if isinstance(tree.get(name), bool):
            raise UsageError(f"{told_in}: {name} is {tree[name]}, a truth value; put the command in quotes")
    full = {
        name: {"run": value} if name in TIMEOUTS_S and isinstance(value, str) else value for name, value in tree.items()
    }
    try:
        hooks = msgspec.convert(full, Hooks)
    except msgspec.ValidationError as error:
        raise UsageError(f"{told_in} cannot be used: {error}") from error
    for name in TIMEOUTS_S:
        hook = getattr(hooks, name)
        if hook is not None and not hook.run.strip():
            raise UsageError(f"{told_in} has an empty command for {name}")
        if hooks.timeout_s(name) <= 0.0:
            raise UsageError(f"{told_in} gives {name} {hooks.timeout_s(name):g} s; a limit must be positive")
    if hooks.devices is not None and hooks.devices < 1:
        raise UsageError(f"{told_in} says that the arm occupies {hooks.devices} devices; it must be at least 1")
    return hooks

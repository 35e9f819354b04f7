"""Where an engine is started from: a Python environment, a command line, or the program on the PATH."""

import shlex
from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.errors import UsageError

_PLACES = ("model", "port", "flags")


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """How the user wants an engine started, and with what on top, in both arms.

    `python`: the interpreter of the environment that has the engine. `command`: a command line with `{model}`, `{port}` and
    `{flags}` where these belong; what it does not name is added at the end in the engine's own form. `flags`: the engine's
    own. `environment`: variables on top of this process's. `devices`: how many each arm occupies (None:
    nobody said).
    """

    python: str | None = None
    command: str | None = None
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    devices: int | None = None

    def __post_init__(self) -> None:
        if self.python is not None and self.command is not None:
            raise UsageError("an engine is started either from a Python environment or by a command line; give one")
        if self.devices is not None and self.devices < 1:
            raise UsageError(f"each arm is said to occupy {self.devices} devices; it must be at least 1")
        if self.command is not None and not _words(self.command):
            raise UsageError("the command line that starts the engine is empty")


class MeasuringFlag(msgspec.Struct, frozen=True, kw_only=True):
    """A flag that an arm gets for measuring, unless its user gives it. `words`: as it is written; `names`: the names under
    which a user may give it, or its opposite; `variable`: the one of the environment that does the same."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    variable: str | None = None


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """`at(port)` is what is started. `shown` is the same as a user would write it: without what is only for measuring, and
    with a port only where one is pinned."""

    at: Callable[[int], tuple[str, ...]]
    shown: tuple[str, ...]


def command_line(
    starting: Starting,
    module: Sequence[str],
    program: Sequence[str],
    model: Sequence[str],
    flags: Sequence[str],
    measuring: Sequence[MeasuringFlag] = (),
    pinned: int | None = None,
) -> CommandLine:
    """`module`: what follows the interpreter; `program`: how it is called from the PATH; `model`: how it is told its model.
    `measuring` stands before what the user gives, and what the user gives is left out of it."""
    own = (*starting.flags, *flags)
    extra = measuring_words(measuring, given_words(starting, flags), starting.environment)
    at_port = () if pinned is None else ("--port", str(pinned))
    if starting.command is None:
        head = tuple(program) if starting.python is None else (starting.python, *module)
        return CommandLine(
            at=lambda port: (*head, *model, *extra, *own, *_served_at(port)),
            shown=(*program, *model, *own, *at_port),
        )
    words = _words(starting.command)
    return CommandLine(
        at=lambda port: _filled(words, model, (*extra, *own), str(port), _served_at(port)),
        shown=_filled(words, model, own, "{port}" if pinned is None else str(pinned), at_port),
    )


def given_words(starting: Starting, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """All words that may be options of the engine: those of the user's command line, also within a quoted one (`sh -c`), of the
    user's flags, and of `flags`."""
    words = () if starting.command is None else _words(starting.command)
    return (*(part for word in words for part in word.split()), *starting.flags, *flags)


def measuring_words(
    measuring: Sequence[MeasuringFlag], given: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The flags for measuring without those that the user gives: theirs count, and are what a report shows."""
    named = {option(word) for word in given}
    variables = given_variables(given, environment)
    return tuple(
        word
        for flag in measuring
        if named.isdisjoint(flag.names) and flag.variable not in variables
        for word in flag.words
    )


def given_variables(given: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The arm's variables, and those that its words set (`env NAME=VALUE engine ...`, `docker run -e NAME=VALUE ...`)."""
    return {**environment, **{name: value for name, found, value in (word.partition("=") for word in given) if found}}


def option(word: str) -> str:
    """The name in `--name=value` or `--name`; vLLM and llama.cpp take `_` for `-` in it."""
    return word.partition("=")[0].replace("_", "-")


def _filled(
    words: Sequence[str], model: Sequence[str], flags: Sequence[str], port: str, served_at: Sequence[str]
) -> tuple[str, ...]:
    """The user's command line with everything in its place, and what it has no place for at its end."""
    named = {place for place in _PLACES if any(f"{{{place}}}" in word for word in words)}
    found: list[str] = []
    for word in words:
        filled = word.replace("{model}", model[-1]).replace("{port}", port).replace("{flags}", shlex.join(flags))
        found += flags if word == "{flags}" else [filled]
    return (
        *found,
        *(model if "model" not in named else ()),
        *(flags if "flags" not in named else ()),
        *(served_at if "port" not in named else ()),
    )


def _served_at(port: int) -> tuple[str, ...]:
    """How vLLM, SGLang and llama.cpp are told their address."""
    return ("--host", "127.0.0.1", "--port", str(port))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command line {command!r} cannot be read as a shell would ({error})") from error

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
    own. `environment`: variables on top of this process's. `devices`: how many each arm occupies, for the estimate of
    device-hours.
    """

    python: str | None = None
    command: str | None = None
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    devices: int = 1

    def __post_init__(self) -> None:
        if self.python is not None and self.command is not None:
            raise UsageError("an engine is started either from a Python environment or by a command line; give one")
        if self.devices < 1:
            raise UsageError(f"each arm is said to occupy {self.devices} devices; it must be at least 1")
        if self.command is not None and not _words(self.command):
            raise UsageError("the command line that starts the engine is empty")


def command_line(
    starting: Starting,
    module: Sequence[str],
    program: Sequence[str],
    model: Sequence[str],
    flags: Sequence[str],
    served_at: Callable[[int], Sequence[str]],
) -> Callable[[int], tuple[str, ...]]:
    """The command line by port. `module`: what follows the interpreter; `program`: how it is called from the PATH; `model`,
    `served_at(port)`: how the engine is told its model and its address."""
    if starting.command is None:
        head = tuple(program) if starting.python is None else (starting.python, *module)
        return lambda port: (*head, *model, *starting.flags, *flags, *served_at(port))
    words = _words(starting.command)
    named = {place for place in _PLACES if any(f"{{{place}}}" in word for word in words)}

    def filled(port: int) -> tuple[str, ...]:
        found: list[str] = []
        for word in words:
            if word == "{flags}":
                found += [*starting.flags, *flags]
            else:
                found.append(word.replace("{model}", model[-1]).replace("{port}", str(port)))
        return (
            *found,
            *(model if "model" not in named else ()),
            *((*starting.flags, *flags) if "flags" not in named else ()),
            *(served_at(port) if "port" not in named else ()),
        )

    return filled


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command line {command!r} cannot be read as a shell would ({error})") from error

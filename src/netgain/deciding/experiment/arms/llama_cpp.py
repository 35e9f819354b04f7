"""llama.cpp's server as an arm."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.deciding.experiment.arms.starting import (
    MeasuringFlag,
    Starting,
    command_line,
    given_variables,
    given_words,
    option,
)
from netgain.errors import NetgainError, Unavailable, UsageError

_CACHE_NAMES = ("--cache-ram", "-cram")
_CACHE_VARIABLE = "LLAMA_ARG_CACHE_RAM"
_ERROR = re.compile(r"(?:^|\s)(?:error|E)\b[: ].+|.*failed to .+|GGML_ASSERT.+")


def launched_llama_cpp(
    name: str, model: str, flags: Sequence[str], log: Path, starting: Starting | None = None, port: int | None = None
) -> LaunchedServer:
    """`llama-server -m MODEL FLAGS` as an arm; what is only for measuring is not in its `command`."""
    starting = starting or Starting()
    if starting.python is not None:
        raise UsageError("llama.cpp's server is no Python program; say how it is started with --command")
    slots = log.parent / f"{name}-slots"
    command = command_line(
        starting,
        module=(),
        program=("llama-server",),
        model=("-m", model),
        flags=flags,
        measuring=measuring_flags(slots),
        pinned=port,
    )

    def with_folder(chosen: int) -> Sequence[str]:
        slots.mkdir(parents=True, exist_ok=True)
        return command.at(chosen)

    program = Program(
        command=with_folder,
        shown=command.shown,
        environment=starting.environment,
        explain=_explain,
        reset=partial(ask_reset, engine="llama.cpp"),
        outlives_reset=_outlives_reset(given_words(starting, flags), starting.environment),
    )
    return LaunchedServer(name, program, log, port)


def measuring_flags(slots: Path) -> tuple[MeasuringFlag, ...]:
    """Counters; slots that can be erased; and no second cache of prompts in memory, which erasing a slot leaves full. Names and
    variables as in common/arg.cpp."""
    return (
        MeasuringFlag(words=("--metrics",), names=("--metrics",), variable="LLAMA_ARG_ENDPOINT_METRICS"),
        MeasuringFlag(words=("--slot-save-path", str(slots)), names=("--slot-save-path",)),
        MeasuringFlag(words=("--cache-ram", "0"), names=_CACHE_NAMES, variable=_CACHE_VARIABLE),
    )


def _outlives_reset(given: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """That its user has it keep prompts in memory, where erasing slots does not reach them. The last one given counts, and a flag
    before the variable."""
    told = given_variables(given, environment).get(_CACHE_VARIABLE)
    said = f"{_CACHE_VARIABLE}={told}"
    for place, word in enumerate(given):
        if option(word) in _CACHE_NAMES:
            value = word.partition("=")[2] or next(iter(given[place + 1 : place + 2]), "")
            told, said = value, f"{option(word)} {value}"
    if told is None or told == "0":
        return None
    return f"the prompts that {said} keeps in memory are not reached by that, and may be found again"


def _explain(code: int, log: str) -> NetgainError | None:
    found = next((match for line in log.splitlines() if (match := _ERROR.search(line))), None)
    return (
        Unavailable(f"llama-server ended with code {code} while starting: {found.group().strip()}") if found else None
    )

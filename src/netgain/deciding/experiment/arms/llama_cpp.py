"""llama.cpp's server as an arm."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.deciding.experiment.arms.starting import Starting, command_line
from netgain.errors import NetgainError, Unavailable, UsageError

_ERROR = re.compile(r"(?:^|\s)(?:error|E)\b[: ].+|.*failed to .+|GGML_ASSERT.+")


def launched_llama_cpp(
    name: str, model: str, flags: Sequence[str], log: Path, starting: Starting | None = None, port: int | None = None
) -> LaunchedServer:
    """`llama-server -m MODEL FLAGS` as an arm.

    Only for measuring: counters, erasable slots, and no second cache of prompts in memory, which erasing a slot leaves full.
    """
    starting = starting or Starting()
    if starting.python is not None:
        raise UsageError("llama.cpp's server is no Python program; say how it is started with --command")
    slots = log.parent / f"{name}-slots"
    measuring = ("--metrics", "--slot-save-path", str(slots), "--cache-ram", "0")
    command = command_line(
        starting,
        module=(),
        program=("llama-server",),
        model=("-m", model),
        flags=(*flags, *measuring),
        served_at=lambda chosen: ("--host", "127.0.0.1", "--port", str(chosen)),
    )

    def with_folder(chosen: int) -> Sequence[str]:
        slots.mkdir(parents=True, exist_ok=True)
        return command(chosen)

    program = Program(
        command=with_folder,
        shown=("llama-server", "-m", model, *starting.flags, *flags),
        environment=starting.environment,
        explain=_explain,
        reset=partial(ask_reset, engine="llama.cpp"),
    )
    return LaunchedServer(name, program, log, port)


def _explain(code: int, log: str) -> NetgainError | None:
    found = next((match for line in log.splitlines() if (match := _ERROR.search(line))), None)
    return (
        Unavailable(f"llama-server ended with code {code} while starting: {found.group().strip()}") if found else None
    )

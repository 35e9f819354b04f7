"""SGLang's server as an arm. Written from its source at d315eb725044 (0.5.18); never started by these tests, which have no
machine that it runs on."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.deciding.experiment.arms.starting import MeasuringFlag, Starting, command_line
from netgain.errors import NetgainError, Unavailable

READ_FROM = "0.5.18 (sgl-project/sglang at d315eb725044)"
# Only for measuring (python/sglang/srt/server_args.py): counters on /metrics; cached tokens of each answer.
MEASURING_FLAGS = tuple(
    MeasuringFlag(words=(name,), names=(name,)) for name in ("--enable-metrics", "--enable-cache-report")
)

_SHUTDOWN_S = 30.0
_CAUSE = re.compile(r"\b\w*(?:Error|Exception): .+")


def launched_sglang(
    name: str, model: str, flags: Sequence[str], log: Path, starting: Starting | None = None, port: int | None = None
) -> LaunchedServer:
    """`python -m sglang.launch_server --model-path MODEL FLAGS` as an arm; what is only for measuring is not in its `command`."""
    starting = starting or Starting()
    command = command_line(
        starting,
        module=("-m", "sglang.launch_server"),
        program=("python3", "-m", "sglang.launch_server"),
        model=("--model-path", model),
        flags=flags,
        measuring=MEASURING_FLAGS,
        pinned=port,
    )
    program = Program(
        command=command.at,
        shown=command.shown,
        environment=starting.environment,
        explain=_explain,
        shutdown_s=_SHUTDOWN_S,
        reset=partial(ask_reset, engine="sglang"),
    )
    return LaunchedServer(name, program, log, port)


def _explain(code: int, log: str) -> NetgainError | None:
    found = next((match for line in log.splitlines() if (match := _CAUSE.search(line))), None)
    return Unavailable(f"SGLang ended with code {code} while starting: {found.group()}") if found else None

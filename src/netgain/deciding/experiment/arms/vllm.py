"""vLLM's server as an arm, from a Python environment, a command line or the PATH; on CPU or GPU, as its environment says."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.deciding.experiment.arms.starting import MeasuringFlag, Starting, command_line
from netgain.errors import NetgainError, Unavailable

# Only for measuring, where the user does not say otherwise: cached tokens of each answer; the routes that reset caches and tell
# the configuration.
MEASURING_FLAGS = (
    MeasuringFlag(
        words=("--enable-prompt-tokens-details",),
        names=("--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"),
    ),
)
MEASURING_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}

_CAUSE = re.compile(r"\b\w*(?:Error|Exception|Interrupt): .+|Illegal instruction|Segmentation fault")
_SHUTDOWN_S = 30.0  # the front end waits for its engine processes


def launched_vllm(
    name: str, model: str, flags: Sequence[str], log: Path, starting: Starting | None = None, port: int | None = None
) -> LaunchedServer:
    """`vllm serve MODEL FLAGS` as an arm; what is only for measuring is not in its `command`."""
    starting = starting or Starting()
    command = command_line(
        starting,
        module=("-m", "vllm.entrypoints.cli.main", "serve"),
        program=("vllm", "serve"),
        model=(model,),
        flags=flags,
        measuring=MEASURING_FLAGS,
        pinned=port,
    )
    program = Program(
        command=command.at,
        shown=command.shown,
        environment={**MEASURING_ENVIRONMENT, **starting.environment},
        explain=first_error,
        shutdown_s=_SHUTDOWN_S,
        reset=partial(ask_reset, engine="vllm"),
    )
    return LaunchedServer(name, program, log, port)


def first_error(code: int, log: str) -> NetgainError | None:
    """The first error that vLLM's log names: the last ones only say that something failed."""
    lines = [line for line in log.splitlines() if "WARNING" not in line]
    found = next((match for line in lines if (match := _CAUSE.search(line))), None)
    return Unavailable(f"vLLM ended with code {code} while starting: {found.group()}") if found else None

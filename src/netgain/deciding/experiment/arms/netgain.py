"""netgain's own server as an arm."""

import sys
from collections.abc import Sequence
from pathlib import Path

from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.starting import Starting
from netgain.errors import NetgainError, Unavailable, UsageError

_SAID = "netgain: "  # how the command begins its one line about a failure


def launched_netgain(
    name: str, flags: Sequence[str], log: Path, starting: Starting | None = None, port: int | None = None
) -> LaunchedServer:
    """`netgain serve FLAGS` as an arm, by default of this netgain."""
    starting = starting or Starting()
    executable = starting.python or sys.executable

    def explain(code: int, text: str) -> NetgainError | None:
        said = [line.removeprefix(_SAID) for line in text.splitlines() if line.startswith(_SAID)]
        kind = UsageError if code == UsageError.exit_code else Unavailable
        return kind(f"the {name} server did not start: {said[-1]} (log: {log})") if said else None

    return LaunchedServer(
        name,
        Program(
            command=lambda chosen: (executable, "-m", "netgain.cli.main", "serve", *flags, "--port", str(chosen)),
            shown=("netgain", "serve", *flags, *(() if port is None else ("--port", str(port)))),
            environment=starting.environment,
            explain=explain,
        ),
        log,
        port,
    )

"""A shell command of the user's that is waited for, but not for ever."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO


def run_to_its_end(
    command: str,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
) -> int | None:
    """Its exit code; None when it took too long, and was ended together with what it had started. What it writes goes where
    netgain's own output does, unless told otherwise."""
    process = subprocess.Popen(
        ("sh", "-c", command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

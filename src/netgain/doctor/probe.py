"""Measures what this machine can do at most: memory reads, the engine's matrix products, messages; in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from netgain.cost.machine import Latency, MachineProbe, ProductRate, ReadRate, this_machine
from netgain.doctor.cgroup import memory_left
from netgain.errors import Unavailable
from netgain.serving.model.kernels.build import cache_directory, find_compiler, load_machine_probe

ARRAY_BYTES = 1 << 30  # no cache holds it
REPEATS = 5
PROGRAM_TIMEOUT_S = 60.0
PRODUCTS_TIMEOUT_S = 420.0  # the kernels may have to be compiled first
PRODUCTS_MODULE = "netgain.serving.model.kernels.product_rates"  # by name, since it loads torch
BUSY_CORES = 0.2
BUSY_STOLEN = 0.02
COMPILED = "C++"

Tell = Callable[[str], None]


def probe_machine(tell: Tell = lambda text: None, *, array_bytes: int = ARRAY_BYTES) -> MachineProbe:
    """Probe for a few seconds, longer where something has to be compiled first; `tell` hears what is done now. Never raises
    for what cannot be measured: it is named in `missing`."""
    machine = this_machine()
    found: dict[str, Any] = {}
    missing: list[str] = []
    tell("building the probe of memory and messages")
    try:
        program: Path | None = load_machine_probe(find_compiler(), cache_directory())
    except (Unavailable, OSError) as error:
        program = None
        missing.append(f"latency of messages: {_first_line(error)}")
    watch = _Watch()
    tell("reading memory")
    size = min(array_bytes, _free_bytes() // 4)
    if program is not None:
        try:
            found = _figures([str(program), str(size), str(machine.cores), str(REPEATS)])
        except Unavailable as error:
            missing.append(f"memory and messages by the compiled probe: {error}")
    reads = found.get("reads") or _numpy_reads(size)
    tell("multiplying with the engine's kernels (the first time they are compiled, up to a minute or two)")
    try:
        products = _products(machine.cores)
    except Unavailable as error:
        products = ()
        missing.append(f"matrix products: {error}")
    foreign, stolen = watch.read()
    return MachineProbe(
        machine=machine,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        reads=tuple(reads),
        products=products,
        round_trip=found.get("round_trip"),
        wake_up=found.get("wake_up"),
        foreign_cores=foreign,
        stolen=stolen,
        busy=(foreign or 0.0) > BUSY_CORES or (stolen or 0.0) > BUSY_STOLEN,
        missing=tuple(missing),
    )


def _figures(command: Sequence[str]) -> dict[str, Any]:
    """What the compiled program prints. Raises Unavailable."""
    found: dict[str, Any] = {"reads": []}
    for line in _lines(command, PROGRAM_TIMEOUT_S):
        for name, values in line.items():
            if name == "read":
                found["reads"].append(ReadRate(**values, by=COMPILED))
            else:
                found[name] = Latency(**values, by=COMPILED)
    return found


def _products(threads: int) -> tuple[ProductRate, ...]:
    """Raises Unavailable without torch, and when the kernels fail."""
    if find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    first, *rates = _lines([sys.executable, "-m", PRODUCTS_MODULE, "--threads", str(threads)], PRODUCTS_TIMEOUT_S)
    return tuple(ProductRate(**line, kernels=first["kernels"]) for line in rates)


def _lines(command: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """The JSON lines that a program prints. Raises Unavailable, with its own last words."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"no result within {timeout_s:g} s") from None
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(words[-1] if words else f"{Path(command[0]).name} ended with code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _numpy_reads(size: int) -> Iterator[ReadRate]:
    """Without the compiled probe: one thread, and by a library that does more than read, so it is labelled."""
    data = np.ones(size // 8, dtype=np.int64)
    best = float("inf")
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start_s)
    yield ReadRate(threads=1, bytes_per_s=data.nbytes / best, array_bytes=data.nbytes, repeats=REPEATS, by="numpy")


def _free_bytes() -> int:
    group = memory_left()
    free = psutil.virtual_memory().available
    return free if group is None else min(free, group[1])


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


class _Watch:
    """What else the machine does from now on: cores that other processes use, and time that the hypervisor takes."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._machine = _machine_times()
        self._own_s = _own_cpu_s()

    def read(self) -> tuple[float | None, float | None]:
        """Cores used by others, and the share of all cores' time that was stolen; None where the system does not tell."""
        before, after = self._machine, _machine_times()
        wall_s = max(1e-3, time.monotonic() - self._began_s)
        if before is None or after is None:
            return None, None
        foreign_s = after[0] - before[0] - (_own_cpu_s() - self._own_s)
        return max(0.0, foreign_s) / wall_s, max(0.0, after[1] - before[1]) / (wall_s * (os.cpu_count() or 1))


def _machine_times() -> tuple[float, float] | None:
    """CPU seconds that all processes used, and stolen ones, since the machine started."""
    if not Path("/proc/stat").exists():
        return None
    times = psutil.cpu_times()
    used = times.user + times.system + times.nice + times.irq + times.softirq
    return float(used), float(times.steal)


def _own_cpu_s() -> float:
    times = os.times()  # of this process and of its children that ended
    return times.user + times.system + times.children_user + times.children_system

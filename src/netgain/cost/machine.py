"""What this machine can do at most, as `netgain doctor` measured it, kept per machine in the user's cache."""

import os
import platform
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from netgain.cost import kept

FORMAT: Literal[1] = 1


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Which machine: figures of one say nothing about another. `cores` are those that this process may use."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str


class ReadRate(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second of summing an array that no cache holds: the best of `repeats`. `by` says what summed."""

    threads: int
    bytes_per_s: float
    array_bytes: int
    repeats: int
    by: str


class ProductRate(msgspec.Struct, frozen=True, kw_only=True):
    """Operations (a multiplication and an addition are two) per second of a large matrix product whose weights are kept and
    multiplied as `dtype` (as an engine names it: "bf16", "bf16 x bf16"), by the engine's own `kernels`: the best of `repeats`."""

    dtype: str
    ops_per_s: float
    threads: int
    rows: int
    repeats: int
    kernels: str


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one kind of message between two threads or processes."""

    median_s: float
    p99_s: float
    repeats: int
    by: str


class MachineProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe. What could not be measured is absent, with the reason in `missing`.

    `taken` is UTC. `foreign_cores` is how many cores other processes used meanwhile, `stolen` the share of time that the
    hypervisor took away (None: not known); with `busy` the figures are lower than the machine's limits.
    """

    format: Literal[1] = FORMAT
    machine: Machine
    taken: str
    reads: tuple[ReadRate, ...] = ()
    products: tuple[ProductRate, ...] = ()
    round_trip: Latency | None = None
    wake_up: Latency | None = None
    foreign_cores: float | None = None
    stolen: float | None = None
    busy: bool = False
    missing: tuple[str, ...] = ()

    @property
    def read_bytes_per_s(self) -> float | None:
        """The machine's memory bandwidth: the best over thread counts."""
        return max((read.bytes_per_s for read in self.reads), default=None)

    def ops_per_s(self, dtype: str, kernels: str) -> float | None:
        """The rate of products in `dtype`; None when these kernels were not probed with it."""
        return next((p.ops_per_s for p in self.products if p.dtype == dtype and p.kernels == kernels), None)


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        cpu=cpu_name() or platform.machine(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
    )


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity where the system has one (Linux), else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str | None:
    """As the system calls it, with family and model, since virtual machines give different processors one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or None
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name")
    if name is None or "cpu family" not in told or "model" not in told:
        return name
    return f"{name} (family {told['cpu family']} model {told['model']})"


def kept_probe(cache: Path, machine: Machine) -> MachineProbe | None:
    """The probe of `machine` that was kept in the user's cache folder, if any."""
    found = kept.read(_file(cache, machine), MachineProbe)
    return found if found is not None and found.machine == machine else None


def keep_probe(cache: Path, probe: MachineProbe) -> MachineProbe:
    """Keep `probe` and return what is kept now. One that was taken while the machine was busy does not replace a quiet one of
    the same kernels, which is closer to the machine's limits. Raises OSError."""
    before = kept_probe(cache, probe.machine)
    if probe.busy and before is not None and not before.busy and _kernels(before) == _kernels(probe):
        return before
    kept.write(_file(cache, probe.machine), probe)
    return probe


def _kernels(probe: MachineProbe) -> set[tuple[str, str]]:
    return {(product.dtype, product.kernels) for product in probe.products}


def _file(cache: Path, machine: Machine) -> Path:
    return kept.file_of(cache / "machine", msgspec.to_builtins(machine))

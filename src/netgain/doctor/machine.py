"""Processor, memory, clock and the system's settings where they matter for serving."""

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from netgain.cost.machine import usable_cores
from netgain.doctor.cgroup import cpu_quota, memory_left
from netgain.doctor.finding import Finding, note, ok, problem, unknown
from netgain.serving.tiers.shared_memory import held

NEEDED_BYTES = 600 << 20  # the default model with a small KV pool, both processes
COMFORTABLE_BYTES = 2 << 30
MUCH_OF_MEMORY = 0.25
_USEFUL = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16", "i8mm")


def processor() -> Iterator[Finding]:
    info = _proc("cpuinfo")
    name, flags = "", set[str]()
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = value.strip()
        elif key.strip().lower() in ("flags", "features") and not flags:
            flags = set(value.split())
    found = [flag for flag in _USEFUL if flag in flags]
    seen = f"{name or platform.machine()}; {', '.join(found) or 'no vector extension that matters'}"
    if not info:
        yield unknown("machine", "processor", f"{platform.processor() or platform.machine()}, features not readable")
    elif platform.machine() in ("x86_64", "AMD64") and "avx2" not in flags:
        yield note("machine", "processor", seen, "kernels run without AVX2, several times slower")
    else:
        yield ok("machine", "processor", seen)


def cores() -> Iterator[Finding]:
    total = os.cpu_count()
    usable = usable_cores()
    quota = cpu_quota()
    seen = f"{usable} of {total} cores by affinity; " + (
        "no CPU quota" if quota is None else f"quota of {quota:g} cores"
    )
    if quota is not None and quota < usable:
        threads = max(1, int(quota))
        yield note(
            "machine",
            "cores",
            seen,
            "by default there is a compute thread per core; beyond the quota they are throttled together, in bursts",
            f"netgain serve --set engine.model.threads={threads}",
        )
    else:
        yield ok("machine", "cores", seen)
    busy = os.getloadavg()[0]
    if busy > usable:
        yield note(
            "machine",
            "load",
            f"{busy:.1f} runnable on {usable} cores",
            "other work takes time from steps, and makes predictions and verdicts less certain",
            "stop the other work or wait for it to end: ps -eo pid,pcpu,args --sort=-pcpu | head",
        )
    else:
        yield ok("machine", "load", f"{busy:.1f} runnable on average of the last minute")


def threads() -> Iterator[Finding]:
    usable = usable_cores()
    told = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if os.environ.get(name)}
    seen = ", ".join(f"{name}={value}" for name, value in told.items()) or "not set; one compute thread per core"
    if any(value.isdecimal() and int(value) < usable for value in told.values()):
        yield note(
            "machine",
            "thread variables",
            seen,
            f"torch uses fewer threads than the {usable} cores where it computes itself",
            f"unset {' '.join(told)}",
        )
    else:
        yield ok("machine", "thread variables", seen)


def memory() -> Iterator[Finding]:
    machine = psutil.virtual_memory()
    group = memory_left()
    left = machine.available if group is None else min(machine.available, group[1])
    limit = "no limit of the control group" if group is None else f"control group limited to {_gib(group[0])}"
    seen = f"{_gib(left)} available of {_gib(machine.total)}; {limit}"
    if left < NEEDED_BYTES:
        yield problem(
            "machine",
            "memory",
            seen,
            f"the smallest server needs about {_gib(NEEDED_BYTES)}; the kernel would end it",
            "free memory, or raise the limit (docker run --memory=4g ...)",
        )
    elif left < COMFORTABLE_BYTES:
        yield note(
            "machine",
            "memory",
            seen,
            "the KV pool will be small, so few requests run at once",
            "netgain serve --set engine.cache.kv_tokens=4096",
        )
    else:
        yield ok("machine", "memory", seen)
    swap = psutil.swap_memory()
    if swap.total and swap.used > 0.5 * swap.total:
        yield note(
            "machine", "swap", f"{_gib(swap.used)} of {_gib(swap.total)} used", "weights may be swapped out", "free -h"
        )
    else:
        yield ok("machine", "swap", f"{_gib(swap.used)} of {_gib(swap.total)} used" if swap.total else "none")


def shared_memory() -> Iterator[Finding]:
    """KV that servers left in shared memory, or have there now."""
    kept = held()
    if not kept:
        yield ok("machine", "shared memory", "no KV in it")
        return
    seen = ", ".join(f"shm:{name} {_gib(size)}" for name, size in sorted(kept.items()))
    if sum(kept.values()) > MUCH_OF_MEMORY * psutil.virtual_memory().total:
        yield note(
            "machine",
            "shared memory",
            f"KV tiers hold {seen}",
            "it counts as memory in use, also when no server runs",
            f"netgain cache purge {' '.join(f'shm:{name}' for name in sorted(kept))} --all",
        )
    else:
        yield ok("machine", "shared memory", f"KV tiers hold {seen}")


def system() -> Iterator[Finding]:
    overcommit = _proc("sys/vm/overcommit_memory")
    if overcommit == "2":
        yield note(
            "machine",
            "overcommit",
            "vm.overcommit_memory is 2",
            "memory counts when it is asked for, not when it is used: a KV pool that would fit may be refused",
            "sysctl vm.overcommit_memory=0",
        )
    elif overcommit:
        yield ok("machine", "overcommit", f"vm.overcommit_memory is {overcommit}")
    else:
        yield unknown("machine", "overcommit", "vm.overcommit_memory cannot be read")
    pages = _file("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = pages.partition("[")[2].partition("]")[0]
    if chosen == "never":
        yield note(
            "machine",
            "huge pages",
            "transparent huge pages are off",
            "reading weights costs more address translation, a few percent",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    elif chosen:
        yield ok("machine", "huge pages", f"transparent huge pages: {chosen}")
    else:
        yield unknown("machine", "huge pages", "the setting of transparent huge pages cannot be read")


def clock() -> Iterator[Finding]:
    source = _file("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    resolution_ns = time.clock_getres(time.CLOCK_MONOTONIC) * 1e9
    began = time.perf_counter_ns()
    for _ in range(1000):
        time.monotonic()
    cost_ns = (time.perf_counter_ns() - began) / 1000
    seen = f"{source or 'source not readable'}, resolution {resolution_ns:g} ns, {cost_ns:.0f} ns a reading"
    if cost_ns > 1000:
        yield note(
            "machine",
            "clock",
            seen,
            "each stamp costs a system call; stages of microseconds are blurred",
            "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
        )
    else:
        yield ok("machine", "clock", seen)


def _proc(name: str) -> str:
    return _file(f"/proc/{name}")


def _file(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"

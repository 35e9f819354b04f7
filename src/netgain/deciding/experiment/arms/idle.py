"""Servers that burn a core while nothing is asked of them, which on a machine without accelerator is taken from the other arm."""

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from netgain.deciding.experiment.arm import Arm

WATCH_S = 3.0
SPIN_CORES = 0.01  # half of what voids a run: how much an idle server uses changes with what else runs
SPINNING = (
    "While idle, {names} used a core, so each was frozen (SIGSTOP) while another was loaded; what it does on being resumed is in "
    "its first request."
)


@runtime_checkable
class Freezable(Protocol):
    """An arm whose processes can be frozen while another one is loaded."""

    freezes: bool

    def pause(self) -> None: ...

    def resume(self) -> None: ...


async def find_spinners(arms: Iterable[Arm]) -> tuple[str, ...]:
    """Watch idle arms for a moment; those that use more than `SPIN_CORES` will be frozen while others are loaded. Returns
    their names. Nothing is frozen beside an accelerator, whose driver may not survive it."""
    if shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists():
        return ()
    asked = [(arm, arm) for arm in arms if isinstance(arm, Freezable)]
    before = {arm.name: _cpu_s(arm) for arm, _ in asked}
    await asyncio.sleep(WATCH_S)
    found: list[str] = []
    for arm, freezable in asked:
        then, now = before[arm.name], _cpu_s(arm)
        if then is not None and now is not None and (now - then) / WATCH_S > SPIN_CORES:
            freezable.freezes = True
            found.append(arm.name)
    return tuple(found)


def _cpu_s(arm: Arm) -> float | None:
    seen = arm.observe()
    return None if seen is None else seen.cpu_s


def give_turn(arms: Mapping[str, Arm], name: str | None) -> None:
    """Let the named arm run (None: all) and freeze the others that are to be frozen."""
    for other, arm in arms.items():
        if isinstance(arm, Freezable) and arm.freezes:
            if name is None or other == name:
                arm.resume()
            else:
                arm.pause()

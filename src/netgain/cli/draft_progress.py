"""How far `netgain draft train` is, on stderr: a bar where somebody looks, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from netgain.serving.training.fit import Trained

EVERY_S = 30.0  # of lines that are read later
_STAGES = {"replies": "replies of the target", "features": "its features", "training": "training"}


class TrainingProgress:
    """A context manager whose `tell` is what `train` calls."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TextColumn("{task.percentage:.0f} %"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[said]}"),
                console=Console(stderr=True),
            )
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._told_s = -EVERY_S

    def __enter__(self) -> TrainingProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, stage: str, share: float, trained: Trained | None) -> None:
        said = "" if trained is None else describe(trained)
        now = time.monotonic()
        if self._bar is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(_STAGES[stage], total=1.0, said="")
            self._bar.update(self._tasks[stage], completed=share, said=said)
            return
        fresh = stage not in self._started
        started = self._started.setdefault(stage, now)
        if fresh or share >= 1.0 or now - self._told_s >= EVERY_S:
            self._told_s = now
            left = f", {(now - started) * (1 - share) / share:.0f} s left" if 0 < share < 1 and now > started else ""
            print(f"{_STAGES[stage]}: {share:.0%}{left} {said}".rstrip(), file=sys.stderr, flush=True)


def describe(trained: Trained) -> str:
    """Step, loss and what is accepted of held-out replies, by position."""
    loss = f"loss {trained.losses[0]:.3f}" if trained.losses else ""
    shares = "" if trained.acceptance is None else "accepted " + "/".join(f"{s:.0%}" for s in trained.acceptance)
    return " ".join(part for part in (f"step {trained.step}", loss, shares) if part)

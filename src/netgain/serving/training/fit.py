"""The training loop: steps until time or number is up, checkpoints that a kill cannot damage, a stop between two steps."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from netgain.errors import UsageError
from netgain.serving.training.corpus import Corpus
from netgain.serving.training.judging import acceptance, loss
from netgain.serving.training.students import Student, Target

LEAST_RATE = 0.1  # of the highest learning rate, at the end of the cosine
WARM_UP = 0.03  # of the training
CLIP = 1.0
HELD_OUT_TOKENS = 2500  # looked at while training; all of them at the end


@dataclass(frozen=True)
class Limits:
    """Training ends after so many steps, or so many seconds."""

    steps: int | None
    seconds: float | None
    checkpoint_s: float = 60.0
    checkpoint_steps: int | None = None

    def share(self, step: int, spent_s: float) -> float:
        done = step / self.steps if self.steps is not None else spent_s / max(self.seconds or 0.0, 1e-9)
        return min(1.0, done)


@dataclass
class Trained:
    """How far a training is. `spent_s` counts only time in this loop, over all runs, `cpu_s` that of all its threads on a core;
    `seen_tokens` those of replies that were learnt from, again in each epoch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    spent_s: float = 0.0
    cpu_s: float = 0.0
    seen_tokens: int = 0
    losses: list[float] = field(default_factory=list)
    acceptance: tuple[float, ...] | None = None
    held_out: int = 0


Tell = Callable[[float, Trained], None]


class Fit:
    """One student under training. `save` is called with every checkpoint, after the checkpoint itself."""

    def __init__(
        self,
        student: Student,
        target: Target,
        corpus: Corpus,
        limits: Limits,
        checkpoint: Path,
        seed: int,
        save: Callable[[Trained], None],
    ) -> None:
        self.trained = Trained()
        self._student, self._target, self._corpus, self._limits = student, target, corpus, limits
        self._checkpoint, self._seed, self._save = checkpoint, seed, save
        learning = [parameter for parameter in student.module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(learning, lr=student.rate, betas=(0.9, 0.95), weight_decay=0.01)
        self._learning = learning

    def resume(self) -> bool:
        """Goes on where the checkpoint is, if there is one. Raises UsageError for a damaged one."""
        if not self._checkpoint.exists():
            return False
        try:
            state = torch.load(self._checkpoint, weights_only=True)
            self._student.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.trained = Trained(**{**state["trained"], "acceptance": _tuple(state["trained"]["acceptance"])})
        except Exception as error:  # torch raises half a dozen kinds for a damaged file
            raise UsageError(
                f"{self._checkpoint} is damaged ({type(error).__name__}); remove its folder to train anew"
            ) from error
        return True

    def run(self, tell: Tell) -> bool:
        """Trains until the limit; False if a signal stopped it before. Either way all is saved."""
        trained, since, saved_at = self.trained, time.monotonic(), time.monotonic()
        before_s, cpu_before_s = trained.spent_s, trained.cpu_s - time.process_time()
        saved_step = trained.step
        batches = self._corpus.epoch(self._seed, trained.epoch)
        if not batches:
            raise UsageError("there is no reply of more than one token to learn from; give more prompts")
        with _stopping() as stop:
            while (share := self._limits.share(trained.step, trained.spent_s)) < 1.0 and not stop.is_set():
                if trained.batch == len(batches):
                    trained.epoch, trained.batch = trained.epoch + 1, 0
                    batches = self._corpus.epoch(self._seed, trained.epoch)
                self._step(batches[trained.batch], share)
                trained.batch += 1
                trained.step += 1
                trained.spent_s = before_s + time.monotonic() - since
                trained.cpu_s = cpu_before_s + time.process_time()
                due = (
                    trained.step - saved_step >= self._limits.checkpoint_steps
                    if self._limits.checkpoint_steps is not None
                    else time.monotonic() - saved_at >= self._limits.checkpoint_s
                )
                if due:
                    self._measure(HELD_OUT_TOKENS)
                    self._keep()
                    saved_at, saved_step = time.monotonic(), trained.step
                    trained.spent_s = before_s + saved_at - since
                tell(self._limits.share(trained.step, trained.spent_s), trained)
            stopped = stop.is_set()
            self._measure(HELD_OUT_TOKENS if stopped else None)
            self._keep()
        return not stopped

    def _step(self, places: list[int], share: float) -> None:
        self._student.module.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self._student.rate * _rate(share)
        batch = self._corpus.batch(places)
        total, each = loss(self._student, self._target, batch, self._student.passes(share))
        if not each:
            return
        if not math.isfinite(float(total.detach())):
            raise UsageError(
                f"the loss of step {self.trained.step} is {float(total.detach())}; train with another seed"
            )
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self._learning, CLIP)
        self._optimizer.step()
        trained = self.trained
        trained.seen_tokens += int(batch.places(1).sum())
        for place, value in enumerate(each):
            if place == len(trained.losses):
                trained.losses.append(value)
            trained.losses[place] += 0.05 * (value - trained.losses[place])

    def _measure(self, most_tokens: int | None) -> None:
        self._student.module.eval()
        batches = (self._corpus.batch(places) for places in self._corpus.held_out(most_tokens))
        self.trained.acceptance, self.trained.held_out = acceptance(self._student, self._target, batches)

    def _keep(self) -> None:
        state: dict[str, Any] = {
            "module": self._student.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "trained": {**vars(self.trained), "losses": list(self.trained.losses)},
        }
        part = self._checkpoint.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._checkpoint)
        self._save(self.trained)


def _rate(share: float) -> float:
    if share < WARM_UP:
        return max(share / WARM_UP, 0.02)
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))


def _tuple(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event instead of ending a step in its middle; a second one ends the process as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def heard(number: int, _: FrameType | None) -> None:
        event.set()
        signal.signal(number, before[number])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, heard)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

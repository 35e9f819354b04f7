"""Measures a step-cost curve within a time budget: interleaved repeats, so that a drifting machine does not bend the curve."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.errors import UsageError
from netgain.ledger.clock import Clock

Composition = tuple[int, int, int]
"""(batch, tokens per sequence, context tokens per sequence)"""

PREFILL_TOKENS = (32, 64, 128, 256, 512)


def measure_step_cost(
    run: Callable[[int, int, int], float],
    batches: Iterable[int],
    tokens: Iterable[int],
    contexts: Iterable[int],
    clock: Clock,
    budget_s: float,
    *,
    prefill_tokens: Iterable[int] = PREFILL_TOKENS,
    max_repeats: int = 9,
    subject: Mapping[str, str] | None = None,
) -> StepCost:
    """Measure with `run(batch, tokens, context) -> seconds` until every point has `max_repeats` or `budget_s` is used up.

    Prompt chunks of `prefill_tokens` are measured alone (batch 1) at every context. `run` may take longer than it returns
    (it has to set the context up); the budget counts all of it, and is overrun by at most one run that was misjudged. The
    cheapest point is always measured. Raises UsageError when `run` returns no positive time.
    """
    probe = StepProbe(batches, tokens, contexts, prefill_tokens=prefill_tokens, max_repeats=max_repeats)
    deadline_s = clock.now() + budget_s
    for point in probe.order():
        began_s = clock.now()
        expected_s = probe.expected_s(point)
        if expected_s is not None and began_s + expected_s > deadline_s:
            continue
        seconds = run(*point)
        probe.add(point, seconds, clock.now() - began_s)
    return probe.result(subject)


class StepProbe:
    """The order and the book of a measurement, for who has to run the points otherwise (awaiting, or between requests):
    take points from `order`, skip those that `expected_s` says are too long, `add` what they took, then ask for `result`."""

    def __init__(
        self,
        batches: Iterable[int],
        tokens: Iterable[int],
        contexts: Iterable[int],
        *,
        prefill_tokens: Iterable[int] = PREFILL_TOKENS,
        max_repeats: int = 9,
    ) -> None:
        counts, alone, behind = tuple(tokens), tuple(prefill_tokens), tuple(contexts)
        grid = {(batch, count, context) for batch in batches for count in counts for context in behind}
        grid |= {(1, count, context) for count in alone for context in behind}
        if not grid or any(batch < 1 or count < 1 or context < 0 for batch, count, context in grid):
            raise UsageError(
                f"cannot measure steps of {sorted(grid)} (batch, tokens, context): "
                "name at least one batch and token count from 1 and one context from 0"
            )
        self._points = sorted(grid, key=_work)
        self._max_repeats = max_repeats
        self._seconds: dict[Composition, list[float]] = {}
        self._elapsed: dict[Composition, float] = {}

    def order(self) -> Iterator[Composition]:
        """Every point once per round, from cheap to dear and back, so that slow drift cancels in each pair of rounds."""
        for repeat in range(self._max_repeats):
            yield from self._points if repeat % 2 == 0 else reversed(self._points)

    def expected_s(self, point: Composition) -> float | None:
        """How long running `point` will take: as before, or in proportion to the dearest one so far; None before any."""
        if point in self._elapsed:
            return self._elapsed[point]
        if not self._elapsed:
            return None
        dearest = max(self._elapsed, key=_work)
        return self._elapsed[dearest] * max(1.0, _work(point) / _work(dearest))

    def add(self, point: Composition, seconds: float, elapsed_s: float) -> None:
        """The step took `seconds`, running it with its set-up `elapsed_s`. Raises UsageError for an impossible time."""
        if not 0 < seconds < float("inf"):
            batch, tokens, context = point
            raise UsageError(
                f"a step of {batch} x {tokens} tokens behind {context} was measured as {seconds} s: give the time it took"
            )
        self._seconds.setdefault(point, []).append(seconds)
        self._elapsed[point] = max(elapsed_s, self._elapsed.get(point, 0.0))

    def result(self, subject: Mapping[str, str] | None = None) -> StepCost:
        """The curve of what was measured so far. Raises UsageError before the first measurement."""
        if not self._seconds:
            raise UsageError("no step was measured: allow more time")
        return StepCost(
            points=tuple(_point(point, self._seconds[point]) for point in self._points if point in self._seconds),
            subject=dict(subject or {}),
            unmeasured=tuple(point for point in self._points if point not in self._seconds),
        )


def _work(point: Composition) -> float:
    """A rough order of cost: tokens computed, and less for the context that they read."""
    batch, tokens, context = point
    return batch * (tokens + context / 64)


def _point(point: Composition, seconds: list[float]) -> StepPoint:
    batch, tokens, context = point
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else None
    return StepPoint(
        batch=batch,
        tokens=tokens,
        context=context,
        seconds=statistics.median(seconds),
        low_s=None if quartiles is None else quartiles[0],
        high_s=None if quartiles is None else quartiles[2],
        repeats=len(seconds),
    )

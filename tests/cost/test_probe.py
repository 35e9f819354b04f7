"""The probe interleaves, keeps medians and spread, and stays within its time."""

import asyncio
import random

import pytest

from netgain.cost.probe import StepProbe, measure_step_cost
from netgain.errors import UsageError


class Machine:
    """A machine whose steps take known time on a clock of its own, with set-up around each run, drift and outliers."""

    def __init__(self, *, setup_s: float = 0.0, drift: float = 0.0, outliers: float = 0.0) -> None:
        self.time_s = 100.0
        self.runs: list[tuple[int, int, int]] = []
        self._setup_s, self._drift, self._outliers = setup_s, drift, outliers
        self._random = random.Random(5)

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        await asyncio.sleep(0)

    def truth(self, batch: int, tokens: int, context: int) -> float:
        return 0.008 + 0.001 * batch * tokens + 1e-6 * batch * context

    def run(self, batch: int, tokens: int, context: int) -> float:
        self.runs.append((batch, tokens, context))
        seconds = self.truth(batch, tokens, context) * (1 + self._drift * len(self.runs))
        if self._random.random() < self._outliers:
            seconds *= 10
        self.time_s += seconds + self._setup_s
        return seconds


def test_with_time_enough_every_point_has_every_repeat() -> None:
    machine = Machine()
    cost = measure_step_cost(machine.run, [1, 2], [1, 5], [0, 64], machine, 1e6, prefill_tokens=[32], max_repeats=5)
    assert len(cost.points) == 2 * 2 * 2 + 2
    assert cost.unmeasured == ()
    for point in cost.points:
        assert point.repeats == 5
        assert point.seconds == pytest.approx(machine.truth(point.batch, point.tokens, point.context))
        assert (point.low_s, point.high_s) == (pytest.approx(point.seconds), pytest.approx(point.seconds))


def test_repeats_are_interleaved_so_that_drift_does_not_bend_the_curve() -> None:
    machine = Machine(drift=0.01)
    cost = measure_step_cost(machine.run, [1], [1, 2, 4, 8], [0], machine, 1e6, prefill_tokens=[], max_repeats=4)
    middle = 1 + 0.01 * (16 + 1) / 2
    for point in cost.points:
        assert point.seconds == pytest.approx(machine.truth(1, point.tokens, 0) * middle, rel=0.03)
        assert point.low_s is not None
        assert point.high_s is not None
        assert point.low_s < point.seconds < point.high_s


def test_medians_ignore_outliers() -> None:
    machine = Machine(outliers=0.1)
    cost = measure_step_cost(machine.run, [1, 2, 4], [1, 3], [0], machine, 1e6, prefill_tokens=[], max_repeats=9)
    for point in cost.points:
        assert point.seconds == pytest.approx(machine.truth(point.batch, point.tokens, 0))


@pytest.mark.parametrize("budget_s", [0.05, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("setup_s", [0.0, 0.02])
def test_the_budget_bounds_the_time_and_what_was_left_out_is_named(budget_s: float, setup_s: float) -> None:
    machine = Machine(setup_s=setup_s)
    cost = measure_step_cost(machine.run, [1, 8, 16], [1, 2, 5, 9], [0, 1024], machine, budget_s)
    slowest = max(machine.truth(*run) + setup_s for run in machine.runs)
    assert machine.time_s - 100.0 <= budget_s + slowest
    measured = {(point.batch, point.tokens, point.context) for point in cost.points}
    assert measured == set(machine.runs)
    assert measured.isdisjoint(cost.unmeasured)
    assert len(measured) + len(cost.unmeasured) == 3 * 4 * 2 + 5 * 2
    if budget_s < 1.0:
        assert cost.unmeasured


def test_without_any_time_the_cheapest_point_is_measured() -> None:
    machine = Machine()
    cost = measure_step_cost(machine.run, [4, 1], [3, 1], [10, 0], machine, 0.0)
    assert [(point.batch, point.tokens, point.context) for point in cost.points] == [(1, 1, 0)]
    assert (cost.points[0].low_s, cost.points[0].repeats) == (None, 1)


async def test_who_has_to_await_drives_the_probe_itself() -> None:
    machine = Machine()
    probe = StepProbe([1], [1, 2], [0], prefill_tokens=[8], max_repeats=2)
    for point in probe.order():
        await machine.sleep(0.5)  # a request is served in between
        began = machine.now()
        probe.add(point, machine.run(*point), machine.now() - began)
    cost = probe.result({"kernel": "reference"})
    assert [point.repeats for point in cost.points] == [2, 2, 2]
    assert cost.subject == {"kernel": "reference"}
    assert cost.v(8, batch=1, context=0) == pytest.approx(0.016 / 0.009)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_is_an_error(seconds: float) -> None:
    with pytest.raises(UsageError, match="1 x 1 tokens"):
        measure_step_cost(lambda *_: seconds, [1], [1], [0], Machine(), 1.0, prefill_tokens=[])


def test_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one"):
        StepProbe([], [1], [0], prefill_tokens=[])
    with pytest.raises(UsageError, match="at least one"):
        StepProbe([0], [1], [0])
    with pytest.raises(UsageError, match="allow more time"):
        StepProbe([1], [1], [0]).result()

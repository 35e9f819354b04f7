"""Where drafts break even: the speed-up of decoding by acceptance, drafts per step and batch, over a measured step-cost curve.

Acceptance is assumed and costs are measured, so a surface says what drafts of a quality would have to cost, or how good those of
a cost would have to be; it says nothing about any draft that exists.
"""

from collections.abc import Sequence

import msgspec

from netgain.cost.speculation import speedup
from netgain.cost.step_cost import StepCost
from netgain.errors import UsageError

ACCEPTANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
LENGTHS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXT = 256
LABEL = "synthetic acceptance, predicted from measured step costs"
_HALVINGS = 50  # of the interval in which break-even lies


class DraftPrice(msgspec.Struct, frozen=True, kw_only=True):
    """`share`: the time of one pass of the draft in plain decode steps of the same batch. `one_pass`: all drafts of a step
    come from one pass, else each takes one."""

    share: float = 0.0
    one_pass: bool = False

    def of(self, drafts: int) -> float:
        """Of making so many drafts, in plain decode steps."""
        return self.share * (1 if self.one_pass and drafts else drafts)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`k` drafts per step at one batch. `step_s`: seconds of a step that verifies them, `verify` the same in plain steps;
    `drafting` what they take to make, in plain steps. `speedups` by the surface's acceptances; `break_even`: the acceptance from
    which drafts pay, None where not even drafts that all stand do."""

    k: int
    step_s: float
    verify: float
    drafting: float
    speedups: tuple[float, ...]
    break_even: float | None

    @property
    def needed(self) -> float:
        """Tokens that a step has to commit to pay."""
        return self.verify + self.drafting


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """All lengths at one batch; a column is None where steps of it were not measured, and `plain_s` where none were."""

    batch: int
    plain_s: float | None
    columns: tuple[Column | None, ...]

    def best(self, row: int) -> Column | None:
        """The length that is fastest at acceptance number `row`; None where none is faster than no drafts."""
        paying = [column for column in self.columns if column is not None and column.speedups[row] > 1.0]
        return max(paying, key=lambda column: column.speedups[row], default=None)


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """`acceptances`: the chance that a draft stands once all before it did, the same at every position. `nearest_context`:
    steps at `context` tokens were not measured everywhere, so costs are those at the nearest measured context."""

    acceptances: tuple[float, ...]
    lengths: tuple[int, ...]
    context: int
    price: DraftPrice
    planes: tuple[Plane, ...]
    nearest_context: bool
    label: str = LABEL

    @property
    def known(self) -> bool:
        return any(column is not None for plane in self.planes for column in plane.columns)

    def column(self, batch: int, k: int) -> Column | None:
        """None where it was not measured or not asked for."""
        for plane in self.planes:
            if plane.batch == batch:
                return next((column for column in plane.columns if column is not None and column.k == k), None)
        return None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a surface beside what an engine did there with drafts that cost nothing to make and are accepted at random.

    Predicted: None where the curve does not reach. Measured: over steps in which all of `batch` requests decoded, with all `k`
    drafts or with none; speed-ups are tokens per second over those without drafts in the same round, the median of `rounds`
    with the lowest and highest. `..._verify` is the time of a step with drafts in plain steps."""

    acceptance: float
    k: int
    batch: int
    predicted_speedup: float | None
    measured_speedup: float
    lowest: float
    highest: float
    predicted_committed: float
    measured_committed: float
    predicted_verify: float | None
    measured_verify: float
    predicted_plain_s: float | None
    measured_plain_s: float
    rounds: int
    steps: int


def surface(
    cost: StepCost,
    *,
    acceptances: Sequence[float] = ACCEPTANCES,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    context: int = CONTEXT,
    price: DraftPrice | None = None,
) -> Surface:
    """Raises UsageError for values that cannot be meant. A cost is never extrapolated over batch or tokens."""
    _check("acceptance", acceptances, 0.0, 1.0)
    _check("number of drafts", lengths, 1, 64)
    _check("batch", batches, 1, 4096)
    price = price or DraftPrice()
    if not 0.0 <= price.share < 10.0:
        raise UsageError(f"the cost of a draft's pass is {price.share:g} of a decode step; give a share such as 0.05")
    rows = tuple(sorted(set(acceptances)))
    columns = tuple(sorted(set(lengths)))
    nearest = False
    planes = []
    for batch in sorted(set(batches)):
        plain = cost.verify(batch, 1, context)
        known = not {"batch", "tokens"} & set(plain.outside)
        made: list[Column | None] = []
        for k in columns:
            wide = cost.verify(batch, k + 1, context)
            if not known or {"batch", "tokens"} & set(wide.outside):
                made.append(None)
                continue
            nearest = nearest or "context" in (*plain.outside, *wide.outside)
            made.append(_column(k, wide.seconds, plain.seconds, price, rows))
        planes.append(Plane(batch=batch, plain_s=plain.seconds if known else None, columns=tuple(made)))
    return Surface(
        acceptances=rows,
        lengths=columns,
        context=context,
        price=price,
        planes=tuple(planes),
        nearest_context=nearest,
    )


def survival_of(acceptance: float, k: int) -> tuple[float, ...]:
    """The chance that a draft stands together with all before it, by position."""
    return tuple(acceptance**place for place in range(1, k + 1))


def speedup_of(survival: Sequence[float], verify: float, drafting: float) -> float:
    """Of drafts whose first i + 1 all stand with chance `survival[i]`; costs in plain decode steps."""
    return (1.0 + sum(survival)) / (verify + drafting)


def break_even(k: int, needed: float) -> float | None:
    """The acceptance from which a step of `k` drafts commits `needed` tokens: a + a^2 + ... + a^k = needed - 1. None where
    that takes more than all of them."""
    if needed > k + 1:
        return None
    low, high = 0.0, 1.0
    if needed <= 1.0:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if 1.0 + sum(survival_of(middle, k)) < needed else (low, middle)
    return high


def _column(k: int, wide_s: float, plain_s: float, price: DraftPrice, acceptances: Sequence[float]) -> Column:
    verify, drafting = wide_s / plain_s, price.of(k)
    return Column(
        k=k,
        step_s=wide_s,
        verify=verify,
        drafting=drafting,
        speedups=tuple(speedup([chance] * k, drafting / k, verify) for chance in acceptances),
        break_even=break_even(k, verify + drafting),
    )


def _check(what: str, values: Sequence[float], low: float, high: float) -> None:
    if not values:
        raise UsageError(f"no {what} is given; give one or more, such as {high:g}")
    for value in values:
        if not low <= value <= high:
            raise UsageError(f"a {what} of {value:g} cannot be; give {low:g} to {high:g}")

"""What a step should cost: measured seconds by batch, tokens per sequence and context, read off by interpolation only."""

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property

import msgspec

from netgain.errors import UsageError


class StepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured composition: each of `batch` sequences computes `tokens` tokens behind `context` tokens of KV.

    `seconds` is the median of `repeats` runs, `low_s` and `high_s` their quartiles (None below two runs).
    """

    batch: int
    tokens: int
    context: int
    seconds: float
    low_s: float | None = None
    high_s: float | None = None
    repeats: int = 1


class Estimate(msgspec.Struct, frozen=True):
    """Seconds of a step. `outside` names what lies outside the measured range ("batch", "tokens", "context"); `seconds` is
    then the cost at the nearest measured edge, not an extrapolation."""

    seconds: float
    outside: tuple[str, ...] = ()

    @property
    def inside(self) -> bool:
        return not self.outside


class StepCost(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The measured cost of steps on one machine, model and kernel path (`subject` says which).

    Between measured points the cost is piecewise linear in tokens, then in context, then in batch, and is not assumed to
    rise: a kernel may be cheaper at 8 tokens than at 7. Points need not form a full grid; `unmeasured` lists the
    (batch, tokens, context) that the probe's time did not reach. `measured_at` is when, in Unix seconds (None: not known).
    """

    points: tuple[StepPoint, ...]
    subject: dict[str, str] = {}
    unmeasured: tuple[tuple[int, int, int], ...] = ()
    measured_at: float | None = None

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a step-cost curve needs at least one measured point")
        for point in self.points:
            if point.batch < 1 or point.tokens < 1 or point.context < 0 or not 0 < point.seconds < float("inf"):
                raise ValueError(f"not a measured step: {point}")
        if len({(point.batch, point.tokens, point.context) for point in self.points}) != len(self.points):
            raise ValueError("a step-cost curve has the same (batch, tokens, context) twice")

    @property
    def largest_batch(self) -> int:
        """The largest batch that was to be measured."""
        return max(*(point.batch for point in self.points), *(batch for batch, _, _ in self.unmeasured), 1)

    def verify(self, batch: int, tokens: int, context: int) -> Estimate:
        """A step in which each of `batch` sequences computes `tokens` tokens (1 = plain decode, 1 + k = k drafts)."""
        exact = self._surfaces.get(batch)
        if exact is not None:
            estimate = exact.at(tokens, context)
            if estimate.inside:
                return estimate
        return self._between_batches(batch, tokens, context)

    def prefill(self, tokens: int, context: int) -> Estimate:
        """A step that computes a prompt chunk of one sequence and nothing else."""
        return self.verify(1, tokens, context)

    def prompt_s(self, start: int, end: int, chunk_tokens: int | None = None) -> float:
        """Computing a prompt's tokens from `start` to `end`, alone, in chunks of `chunk_tokens` (None: the longest measured)."""
        longest = chunk_tokens or max((point.tokens for point in self.points if point.batch == 1), default=1)
        return sum(self.prefill(min(longest, end - at), at).seconds for at in range(start, end, longest))

    def v(self, tokens: int, *, batch: int, context: int) -> float | None:
        """The cost of computing `tokens` tokens per sequence in one step over that of one; None outside the measured range."""
        many, one = self.verify(batch, tokens, context), self.verify(batch, 1, context)
        return many.seconds / one.seconds if many.inside and one.inside else None

    def split(self, wall_s: float, parts: Iterable[tuple[int, int]]) -> list[tuple[float | None, float | None]]:
        """Own cost and stall of each request in a step that took `wall_s`; `parts` are their (tokens, context).

        Own cost is what the part would cost in a step of its own, at most `wall_s`; stall is the rest, so that they add up.
        Both are None where the part lies outside the measured range.
        """
        pairs: list[tuple[float | None, float | None]] = []
        for tokens, context in parts:
            estimate = self.verify(1, tokens, context)
            if estimate.inside:
                own_s = min(estimate.seconds, wall_s)
                pairs.append((own_s, wall_s - own_s))
            else:
                pairs.append((None, None))
        return pairs

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(text: bytes | str) -> "StepCost":
        """Raises UsageError when the text is no step-cost curve."""
        try:
            return msgspec.json.decode(text, type=StepCost)
        except msgspec.MsgspecError as error:
            raise UsageError(f"not a step-cost curve: {error}. Measure it again on this machine") from error

    def _between_batches(self, batch: int, tokens: int, context: int) -> Estimate:
        answers = {size: surface.at(tokens, context) for size, surface in self._surfaces.items()}
        inside = {size: answer for size, answer in answers.items() if answer.inside}
        usable = inside if inside and min(inside) <= batch <= max(inside) else answers
        low = max((size for size in usable if size <= batch), default=min(usable))
        high = min((size for size in usable if size >= batch), default=max(usable))
        outside = {name for size in (low, high) for name in usable[size].outside}
        if not low <= batch <= high:
            outside.add("batch")
        seconds = _line(low, usable[low].seconds, high, usable[high].seconds, batch)
        return Estimate(seconds, tuple(sorted(outside)))

    @cached_property
    def _surfaces(self) -> dict[int, "_Surface"]:
        """By batch, the points of that batch."""
        batches = sorted({point.batch for point in self.points})
        return {batch: _Surface([point for point in self.points if point.batch == batch]) for batch in batches}


class _Curve:
    """Seconds over one axis, at ascending whole numbers."""

    __slots__ = ("at", "seconds")

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        ordered = sorted(points)
        self.at = [at for at, _ in ordered]
        self.seconds = [seconds for _, seconds in ordered]

    def covers(self, at: int) -> bool:
        return self.at[0] <= at <= self.at[-1]

    def read(self, at: int) -> float:
        """Seconds at `at`, or at the nearest end of the curve."""
        index = bisect_left(self.at, at)
        if index == len(self.at):
            return self.seconds[-1]
        if index == 0 or self.at[index] == at:
            return self.seconds[index]
        return _line(self.at[index - 1], self.seconds[index - 1], self.at[index], self.seconds[index], at)


class _Surface:
    """Seconds over tokens and context, at one batch."""

    __slots__ = ("_along_tokens", "_rows")

    def __init__(self, points: list[StepPoint]) -> None:
        contexts = sorted({point.context for point in points})
        self._along_tokens = {
            context: _Curve((point.tokens, point.seconds) for point in points if point.context == context)
            for context in contexts
        }
        self._rows: dict[
            int, _Curve
        ] = {}  # seconds over context by tokens: the step loop asks for few token counts often

    def at(self, tokens: int, context: int) -> Estimate:
        """Between the two nearest contexts at which so many tokens were measured."""
        outside: tuple[str, ...] = ()
        row = self._rows.get(tokens)
        if row is None:
            covering = {at: curve for at, curve in self._along_tokens.items() if curve.covers(tokens)}
            row = _Curve((at, curve.read(tokens)) for at, curve in (covering or self._along_tokens).items())
            if covering:
                self._rows[tokens] = row
            else:
                outside = ("tokens",)
        if not row.covers(context):
            outside = ("context", *outside)
        return Estimate(row.read(context), outside)


def _line(x0: int, y0: float, x1: int, y1: float, x: int) -> float:
    """The line through two points at x, or the nearer point's value outside them."""
    if x <= x0 or x1 == x0:
        return y0
    if x >= x1:
        return y1
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)

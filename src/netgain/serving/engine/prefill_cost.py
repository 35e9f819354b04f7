"""What computing the rest of a prompt will take: the step-cost curve, corrected by what recent prefill steps really took."""

import statistics
from collections import deque
from collections.abc import Callable

from netgain.cost.link import LinkEstimate
from netgain.cost.step_cost import StepCost

_KEPT = 256  # steps of all sizes
_RECENT = 12  # steps: whoever shares the processor comes and goes


class PrefillCost:
    """Before there is a curve, a line through the engine's own prefill steps stands in: so much per step and per token."""

    def __init__(self, curve: Callable[[], StepCost | None], chunk_tokens: int) -> None:
        self._curve = curve
        self._chunk_tokens = chunk_tokens
        self._line = LinkEstimate()
        self._corrections: deque[tuple[int, float]] = deque(
            maxlen=_KEPT
        )  # with sizes: a short step's is not a long one's
        self._correction: dict[int, float] = {}  # by size, of the corrections that there are

    def observed(self, tokens: int, context: int, seconds: float) -> None:
        """A step computed `tokens` prompt tokens behind `context` and nothing else, in `seconds`."""
        self._line.add(tokens, seconds)
        curve = self._curve()
        if curve is not None and seconds > 0:
            self._corrections.append((_size(tokens), seconds / curve.prefill(tokens, context).seconds))
            self._correction.clear()

    def first_step_s(self, start: int, end: int) -> float | None:
        """Of `seconds`, the first step's."""
        return self.seconds(start, min(end, start + self._chunk_tokens))

    def seconds(self, start: int, end: int) -> float | None:
        """To compute the tokens from `start` to `end`, in chunks; None while nothing is known."""
        curve = self._curve()
        if curve is not None:
            steps = ((at, min(end, at + self._chunk_tokens)) for at in range(start, end, self._chunk_tokens))
            return sum(curve.prefill(to - at, at).seconds * self._corrected(to - at) for at, to in steps)
        line = self._line.fit()
        if line is None:
            return None if end > start else 0.0
        total_s = 0.0
        for at in range(start, end, self._chunk_tokens):
            seconds = line.predict_s(min(self._chunk_tokens, end - at))
            if seconds is None:
                return None
            total_s += seconds
        return total_s

    def _corrected(self, tokens: int) -> float:
        """What the last steps of about that size took over what the curve says; of those nearest in size where there was none."""
        size = _size(tokens)
        if size not in self._correction:
            apart = max(1, min((abs(known - size) for known, _ in self._corrections), default=1))
            like = [ratio for known, ratio in self._corrections if abs(known - size) <= apart][-_RECENT:]
            self._correction[size] = statistics.median(like) if like else 1.0
        return self._correction[size]


def _size(tokens: int) -> int:
    """One more for every factor of 4."""
    return tokens.bit_length() // 2

"""What computing the rest of a prompt will take: the step-cost curve, corrected by what recent prefill steps really took."""

import statistics
from collections import deque
from collections.abc import Callable

from netgain.cost.link import LinkEstimate
from netgain.cost.step_cost import StepCost

_RECENT = 12  # steps: whoever shares the processor comes and goes


class PrefillCost:
    """Before there is a curve, a line through the engine's own prefill steps stands in: so much per step and per token."""

    def __init__(self, curve: Callable[[], StepCost | None], chunk_tokens: int) -> None:
        self._curve = curve
        self._chunk_tokens = chunk_tokens
        self._line = LinkEstimate()
        self._corrections: deque[float] = deque(maxlen=_RECENT)
        self._correction = 1.0

    def observed(self, tokens: int, context: int, seconds: float) -> None:
        """A step computed `tokens` prompt tokens behind `context` and nothing else, in `seconds`."""
        self._line.add(tokens, seconds)
        curve = self._curve()
        if curve is not None and seconds > 0:
            self._corrections.append(seconds / curve.prefill(tokens, context).seconds)
            self._correction = statistics.median(self._corrections)

    def first_step_s(self, start: int, end: int) -> float | None:
        """Of `seconds`, the first step's."""
        return self.seconds(start, min(end, start + self._chunk_tokens))

    def seconds(self, start: int, end: int) -> float | None:
        """To compute the tokens from `start` to `end`, in chunks; None while nothing is known."""
        curve = self._curve()
        if curve is not None:
            return curve.prompt_s(start, end, self._chunk_tokens) * self._correction
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

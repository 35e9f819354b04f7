"""How far drafts survive: running counts per position, of one request and, as what to expect of a new one, of all."""

from collections.abc import Sequence

BASE_CHANCE = (
    0.2  # of the next draft, before anything was seen: low, so that nothing is spent before it is known to pay
)
BASE_WEIGHT = 2.0
DEEPER = 0.95
OWN_WEIGHT = 3.0  # observations that what all requests showed counts for in a single one


class Survival:
    """For each position, how often a draft that was reached (all before it stood) stood itself; older observations fade by
    `decay` each."""

    __slots__ = ("_decay", "_reached", "_stood")

    def __init__(self, positions: int, decay: float) -> None:
        self._decay = decay
        self._reached = [0.0] * positions
        self._stood = [0.0] * positions

    def add(self, drafted: int, accepted: int) -> None:
        """`accepted` of `drafted` drafts stood."""
        for position in range(min(accepted + 1, drafted, len(self._reached))):
            self._reached[position] = self._reached[position] * self._decay + 1.0
            self._stood[position] = self._stood[position] * self._decay + (1.0 if position < accepted else 0.0)

    def expected(self) -> list[float]:
        """Per position, the chance that a reached draft stands; where little was seen, a bit less than at the position
        before, so that longer drafts are tried as soon as shorter ones stand."""
        chances = []
        before = BASE_CHANCE
        for stood, reached in zip(self._stood, self._reached, strict=True):
            before = (stood + BASE_WEIGHT * before) / (reached + BASE_WEIGHT)
            chances.append(before)
            before *= DEEPER
        return chances

    def chances(self, expected: Sequence[float]) -> list[float]:
        """The same where `expected`, from all requests, counts for some observations."""
        return [
            (stood + OWN_WEIGHT * chance) / (reached + OWN_WEIGHT)
            for stood, reached, chance in zip(self._stood, self._reached, expected, strict=True)
        ]

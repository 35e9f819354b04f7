"""What handoffs cost each arm, over all starts of its server: read before every stop, since counters begin again."""

from collections import defaultdict
from collections.abc import Mapping

from netgain.deciding.decide.server import handoff_counts
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.verdict.document import HandoffCost


class HandoffLog:
    """Adds up what each arm's counters gained between `begin` and `end`. Warm-up requests are in it."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, dict[str, float]] | None] = {}
        self._sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._silent: set[str] = set()

    async def begin(self, arms: Mapping[str, Arm]) -> None:
        self._before = {name: await handoff_counts(arm.url) for name, arm in arms.items()}

    async def end(self, arms: Mapping[str, Arm]) -> None:
        """An arm that cannot be read once is unknown for good: a sum with a hole is no sum."""
        for name, arm in arms.items():
            before, after = self._before.get(name), await handoff_counts(arm.url)
            if before is None or after is None:
                self._silent.add(name)
                continue
            for kind, figures in after.items():
                for figure, value in figures.items():
                    self._sums[name, kind][figure] += value - before.get(kind, {}).get(figure, 0.0)

    def costs(self) -> tuple[HandoffCost, ...] | None:
        """Kinds that happened; None when no arm told."""
        if self._silent and not self._sums:
            return None
        return tuple(
            HandoffCost(arm=arm, kind=kind, **figures)
            for (arm, kind), figures in sorted(self._sums.items())
            if arm not in self._silent and figures.get("handoffs")
        )

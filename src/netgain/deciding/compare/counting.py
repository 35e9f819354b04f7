"""What started servers counted over all their starts: read before each stop, since counters begin again with a process."""

from collections.abc import Mapping

import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.names import Figure, engine_of, figures
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.observe.window import observed


class FigureLog:
    """Adds up what each arm's counters gained between `begin` and `end`, warm-up included. A figure that is unknown once is
    unknown for good: a sum with a hole is no sum."""

    def __init__(self) -> None:
        self._before: dict[str, Snapshot | None] = {}
        self._windows: dict[str, list[dict[str, Figure]]] = {}

    async def begin(self, arms: Mapping[str, Arm]) -> None:
        self._before = {name: await snapshot(f"{arm.url}/metrics") for name, arm in arms.items()}

    async def end(self, arms: Mapping[str, Arm]) -> None:
        for name, arm in arms.items():
            before, after = self._before.get(name), await snapshot(f"{arm.url}/metrics")
            window = None if before is None or after is None else observed((before, after))
            engine = None if after is None else engine_of(set(after.families))
            found = {} if window is None or engine is None else figures(window, engine)
            self._windows.setdefault(name, []).append(found)

    def figures(self, name: str) -> dict[str, Figure]:
        """Counters of one arm that every start told."""
        windows = self._windows.get(name, [])
        shared = set.intersection(*(set(window) for window in windows)) if windows else set()
        found = {}
        for figure in windows[0] if windows else {}:
            gained = [window[figure].gained for window in windows if figure in window]
            if figure in shared and windows[0][figure].role == "counter" and None not in gained:
                found[figure] = msgspec.structs.replace(
                    windows[0][figure], gained=sum(value or 0.0 for value in gained)
                )
        return found

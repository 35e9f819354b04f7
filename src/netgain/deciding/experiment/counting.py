"""What the servers of an experiment counted over its blocks, over all their starts: read before each stop, since counters begin
again with a process."""

import asyncio
from collections.abc import Mapping

import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.ledger.stage import Stage
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.handoffs import Handoffs, handoffs, together
from netgain.measuring.observe.names import Engine, Figure, engine_of, figures
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.observe.stages import StageSum, stage_sums, summed
from netgain.measuring.observe.window import observed

BEHIND_S: Mapping[Engine, float] = {"netgain": 0.7}  # its engine process reports every half second


class FigureLog:
    """Adds up what each arm's counters gained between `begin` and `end`. A figure that is unknown once is unknown for good: a sum
    with a hole is no sum."""

    def __init__(self) -> None:
        self._before: dict[str, Snapshot | None] = {}
        self._windows: dict[str, list[dict[str, Figure]]] = {}
        self._handoffs: dict[str, list[Handoffs]] = {}
        self._stages: dict[str, list[dict[Stage, StageSum]]] = {}
        self._engines: dict[str, Engine | None] = {}

    async def begin(self, arms: Mapping[str, Arm]) -> None:
        self._before = await _settled(arms)

    async def end(self, arms: Mapping[str, Arm]) -> None:
        for name, after in (await _settled(arms)).items():
            before = self._before.get(name)
            window = None if before is None or after is None else observed((before, after))
            engine = self._engines[name] = None if after is None else engine_of(set(after.families))
            found = {} if window is None or engine is None else figures(window, engine)
            self._windows.setdefault(name, []).append(found)
            self._handoffs.setdefault(name, []).append(handoffs(window, engine))
            self._stages.setdefault(name, []).append(stage_sums(window, engine))

    def engine(self, name: str) -> Engine | None:
        """Whose metrics the arm has; None where it was never known."""
        return self._engines.get(name)

    def handoffs(self, name: str) -> Handoffs:
        """What handoffs cost one arm over all its starts."""
        return together(self._handoffs.get(name, ()))

    def stages(self, name: str) -> dict[Stage, StageSum]:
        """Seconds in the stages that every start of one arm told."""
        return summed(self._stages.get(name, ()))

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


async def _settled(arms: Mapping[str, Arm]) -> dict[str, Snapshot | None]:
    """Metrics that know of everything that was answered before."""
    found = dict(
        zip(
            arms,
            await asyncio.gather(*(snapshot(f"{arm.url}/metrics", arm.headers) for arm in arms.values())),
            strict=True,
        )
    )
    engines = {name: engine_of(set(seen.families)) for name, seen in found.items() if seen is not None}
    behind = {name: BEHIND_S[engine] for name, engine in engines.items() if engine is not None and engine in BEHIND_S}
    if behind:
        await asyncio.sleep(max(behind.values()))
        found.update({name: await snapshot(f"{arms[name].url}/metrics", arms[name].headers) for name in behind})
    return found

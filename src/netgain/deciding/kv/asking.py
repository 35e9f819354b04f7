"""Asks one server one prompt, with nothing left to do behind it, and reads its counters at the two ends of a step."""

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.deciding.kv.settings import HEARTBEAT_S
from netgain.errors import Unavailable
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import run
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.observe.window import ServerWindow, observed
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

QUEUED = "netgain_kv_tier_queued_bytes"
STORED_WITHIN_S = 20.0
_POLL_S = 0.05


class Asker:
    """Requests one at a time of servers of one model. `late` counts those of which the client itself was late."""

    def __init__(self, model: str, timeout_s: float) -> None:
        self._model = model
        self._options = Options(timeout_s=timeout_s, server_record=True, server_tokens=True)
        self.late = 0
        self.asked = 0

    async def ask(self, arm: Arm, item: Item, stores: bool) -> ClientRecord:
        """The answer, once all that it left to be stored is stored, so that nobody else's request pays for that."""
        options = msgspec.structs.replace(self._options, headers=arm.headers)
        done = await run(arm.url, self._model, [item], Closed(1), options)
        self.asked += 1
        lateness_s = done.client.lateness_p99_s
        self.late += lateness_s is not None and lateness_s > self._options.budget.lateness_p99_s
        if stores:
            await _stored(arm)
        return done.records[0]


async def _stored(arm: Arm) -> None:
    """Raises Unavailable when the tier does not catch up."""
    until_s = time.monotonic() + STORED_WITHIN_S
    await asyncio.sleep(1.5 * HEARTBEAT_S)
    while True:
        seen = await counters(arm)
        family = seen.families.get(QUEUED)
        if family is not None and not any(sample.value for sample in family.samples):
            return
        if time.monotonic() > until_s:
            raise Unavailable(f"the {arm.name} server has not stored within {STORED_WITHIN_S:g} s what was published")
        await asyncio.sleep(_POLL_S)


async def counters(arm: Arm) -> Snapshot:
    """All metrics now. Raises Unavailable when they cannot be read."""
    seen = await snapshot(f"{arm.url}/metrics", arm.headers)
    if seen is None:
        raise Unavailable(f"the metrics of the {arm.name} server cannot be read ({arm.url}/metrics)")
    return seen


class Window:
    """The counters of some servers from `begin` to `end`."""

    def __init__(self) -> None:
        self._before: dict[str, Snapshot] = {}

    async def begin(self, arms: Iterable[Arm]) -> None:
        self._before = {arm.name: await counters(arm) for arm in arms}

    async def end(self, arms: Mapping[str, Arm]) -> dict[str, ServerWindow]:
        """By the server's name."""
        await asyncio.sleep(1.5 * HEARTBEAT_S)
        found: dict[str, ServerWindow] = {}
        for name, before in self._before.items():
            window = observed((before, await counters(arms[name])))
            if window is not None:
                found[name] = window
        return found


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One measured request: `role` of `step`, under the start of the servers numbered `repeat`. `group` is shared by the
    requests of one prompt in one step."""

    step: str
    role: str
    repeat: int
    group: int
    record: ClientRecord

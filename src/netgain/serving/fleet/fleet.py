"""The engines behind one API: requests go to a ready replica, and when there is none the cause is named."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from netgain.errors import Unavailable
from netgain.serving.blocks.scope import Tenants
from netgain.serving.engine.request import Request
from netgain.serving.fleet.health import FleetHealth
from netgain.serving.fleet.replica import COMMAND, Replica
from netgain.serving.fleet.reply import Receiver, Ticket
from netgain.serving.fleet.router import Candidate, FewestInFlight, RouterPolicy
from netgain.serving.runtime.config import EngineConfig, FleetSettings


class Fleet:
    """Owns its replicas from `start` to `close`. Used from one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        settings: FleetSettings,
        *,
        replicas: int = 1,
        policy: RouterPolicy | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._replicas = {
            name: Replica(name, config, settings, command) for name in (f"engine-{index}" for index in range(replicas))
        }
        self._policy = policy or FewestInFlight()

    @property
    def info(self) -> Mapping[str, Any]:
        """What an engine said of itself when it was built (all are built alike); empty before `start`."""
        return next((replica.info for replica in self.health().replicas if replica.info), {})

    async def launch(self) -> None:
        """Start every process, so that it loads its libraries while the caller does other work before `start`."""
        await asyncio.gather(*(replica.launch() for replica in self._replicas.values()))

    async def start(self) -> None:
        """Launch all replicas, unless that was done, and wait until they are ready. Raises UsageError or Unavailable;
        nothing runs then."""
        try:
            await asyncio.gather(*(replica.start() for replica in self._replicas.values()))
        except BaseException:
            await self.close()
            raise

    def submit(self, request: Request, receiver: Receiver) -> Ticket:
        """Hand a request to a ready replica; `receiver` gets its events on this event loop. Raises Unavailable, naming the
        cause, when there is none."""
        return self._choose().submit(request, receiver)

    async def step_cost(self, budget_s: float, largest_batch: int, fresh: bool = False) -> bytes:
        """A StepCost as JSON for batches of up to `largest_batch`: the curve that a ready replica uses, or (where it has none,
        or asked `fresh`) one measured for about `budget_s` seconds. Raises Unavailable or Overloaded."""
        return await self._choose().step_cost(budget_s, largest_batch, fresh)

    async def purge_cache(self, tenants: Tenants) -> Mapping[str, bytes | Unavailable]:
        """Have every replica forget the cached KV of tenants: by name an EnginePurged as JSON, or why it did not."""

        async def one(replica: Replica) -> bytes | Unavailable:
            try:
                return await replica.purge_cache(tenants)
            except Unavailable as error:
                return error

        found = await asyncio.gather(*(one(replica) for replica in self._replicas.values()))
        return dict(zip(self._replicas, found, strict=True))

    def health(self) -> FleetHealth:
        replicas = tuple(replica.health() for replica in self._replicas.values())
        ready = any(replica.ready for replica in self._replicas.values())
        return FleetHealth(ready=ready, cause=None if ready else self._why_not_ready(), replicas=replicas)

    async def given_up(self) -> str:
        """Wait until no replica will come back by itself; returns the cause."""
        await asyncio.gather(*(replica.given_up() for replica in self._replicas.values()))
        return self._why_not_ready()

    async def close(self) -> None:
        """End every process; requests in flight are told. May be called twice."""
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))

    def _choose(self) -> Replica:
        candidates = [Candidate(name, replica.in_flight) for name, replica in self._replicas.items() if replica.ready]
        if not candidates:
            raise Unavailable(f"no engine can take this request now: {self._why_not_ready()}")
        return self._replicas[self._policy.choose(candidates).name]

    def _why_not_ready(self) -> str:
        return "; ".join(replica.why_not_ready() for replica in self._replicas.values())

"""An engine forgets tenants: on the device at once, in chunks and tiers as soon as these have done it."""

import logging
from collections.abc import Callable

import msgspec

from netgain.serving.blocks.scope import Scope, Tenants
from netgain.serving.engine.protocols import ChunkSource
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.purging import StorePurged
from netgain.serving.tiers.runner import Runner

_log = logging.getLogger(__name__)


class EnginePurged(msgspec.Struct, frozen=True, kw_only=True):
    """`device_blocks` can be found no more, `chunks` are gone from memory. `store` None: there are no tiers."""

    device_blocks: int
    chunks: int
    store: StorePurged | None


class Purging:
    """Called by whoever calls the engine, between steps. Requests that run keep the KV they hold until they end; nobody finds it,
    and what they add is not stored. Those that come while tiers are purged load nothing of theirs."""

    def __init__(
        self, scheduler: Scheduler, store: KVStore | None, runner: Runner | None, chunks: ChunkSource | None
    ) -> None:
        self._scheduler, self._store, self._runner, self._chunks = scheduler, store, runner, chunks

    def purge(self, tenants: Tenants, done: Callable[[EnginePurged], None]) -> None:
        """`done` is called with what was done: at once, or from the thread of the tiers."""
        blocks = self._scheduler.forget(lambda salt: tenants is None or Scope.of(salt).tenant in tenants)
        chunks = 0 if self._chunks is None else self._chunks.forget(tenants, self._scheduler.unshared())
        store, runner = self._store, self._runner
        if store is None or runner is None:
            done(EnginePurged(device_blocks=blocks, chunks=chunks, store=None))
            return

        async def work() -> None:
            try:
                purged = await store.purge(tenants)
            except Exception as error:
                _log.exception("tiers could not be purged")
                purged = StorePurged(failed=f"{type(error).__name__}: {error}")
            done(EnginePurged(device_blocks=blocks, chunks=chunks, store=purged))

        runner.start(work())

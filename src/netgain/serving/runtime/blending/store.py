"""Chunks of one engine: as tensors in memory, the ones used last, and beyond it in the engine's KV tiers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import torch

from netgain.cost.loading import Why
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.retention import Retention
from netgain.serving.blocks.scope import Scope, Tenants
from netgain.serving.engine.known_links import KnownLinks
from netgain.serving.engine.request import Request
from netgain.serving.engine.tiering import PROBE_EVERY_S
from netgain.serving.runtime.blending.chunks import ChunkKV, from_payload
from netgain.serving.runtime.blending.tally import Tally
from netgain.serving.runtime.build_store import TierStore
from netgain.serving.tiers.blending.fetching import (
    FETCH_S,
    LEAST_WAIT_S,
    ChunkChoice,
    Fetched,
    Missing,
    decided,
    slow_links,
)
from netgain.serving.tiers.blending.stored import ChunkForm
from netgain.serving.tiers.envelope import PlainEnvelope
from netgain.serving.tiers.kv_store import Whole
from netgain.serving.tiers.object import Part

K = TypeVar("K")
T = TypeVar("T")
LOOKUP_S = 0.5
_KNOWN = 4096  # of the last requests, what was decided


class _Kept(NamedTuple):
    """A chunk, whose it is, of the tenant's salt and secret nothing, and when it was computed (whole Unix seconds)."""

    chunk: ChunkKV
    tenant: str | None
    dated: int


class ChunkStore:
    """Implements the engine's ChunkSource. At most `memory_bytes` of chunks in memory. `namespace` is that of chunks (see
    chunk_namespace), `lead` what they are computed behind. `tiers` (None: none) belong to somebody else; `choice` says what is
    taken from them. None is found that is older than `retention` allows, by when it was first computed. Methods are called from
    the engine's event loop, `close` when it has ended."""

    def __init__(
        self,
        form: ChunkForm,
        namespace: Namespace,
        lead: Sequence[int],
        *,
        device: torch.device,
        memory_bytes: int,
        tiers: TierStore | None = None,
        choice: ChunkChoice,
        retention: Retention | None = None,
    ) -> None:
        self.form = form
        self.lead = tuple(lead)
        self.tally = Tally()
        self.choice = choice
        self._retention = retention or Retention()
        self._namespace, self._device, self._tiers = namespace, device, tiers
        self._links = KnownLinks(PROBE_EVERY_S)
        self._fetched: OrderedDict[str, Fetched] = OrderedDict()
        self._left: OrderedDict[bytes, int] = OrderedDict()  # the tiers of chunks that were sooner computed
        self._apart: frozenset[str] = frozenset()
        self.epoch = 0  # how often anything was forgotten
        self._purged: Counter[str | None] = Counter()  # how often each tenant was, by itself
        self._purged_all = 0
        self._envelope = PlainEnvelope() if tiers is None else tiers.store.envelope
        self._capacity = memory_bytes
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._used = 0

    def address(self, salt: bytes, tokens: Sequence[int]) -> bytes:
        """Under what a chunk of a tenant is kept, here and in tiers."""
        return self._part(salt, tokens).address()

    def find(self, salt: bytes, tokens: Sequence[int]) -> ChunkKV | None:
        """The chunk, if it is in memory."""
        address = self.address(salt, tokens)
        if not self._has(address):
            return None
        self._kept.move_to_end(address)
        return self._kept[address].chunk

    def add(self, salt: bytes, chunk: ChunkKV) -> None:
        """Keep a chunk that was computed now, and offer it to the tiers that are not known to have it."""
        address, dated = self.address(salt, chunk.tokens), self._retention.now()
        self._keep(address, chunk, salt, dated)
        if self._tiers is not None:
            stored = self.form.stored(self._root(salt), chunk.tokens, chunk.payload(), dated)
            store, there = self._tiers.store, self._left.pop(address, None)

            async def put() -> None:
                store.put_one(stored, there)

            self._tiers.runner.start(put())

    def shares(self, request_id: str) -> bool:
        """Whether what the request computes may be found by others: not if it was running when its tenant was forgotten."""
        return request_id not in self._apart

    def lacks(self, request: Request) -> bool:
        return self._tiers is not None and self.choice.policy != "never" and bool(self._missing(request))

    async def fetch(self, request: Request) -> None:
        if self._tiers is None or not self.lacks(request):
            return
        began_s, epoch = time.monotonic(), self.epoch_of(request.salt)
        store, root = self._tiers.store, self._root(request.salt)
        missing = self._missing(request)
        wanted = [(self._part(request.salt, tokens), len(tokens)) for tokens in missing.values()]
        located = await self._asked(self._tiers, lambda: store.locate_ones([part for part, _ in wanted]), LOOKUP_S)
        known_s = time.monotonic()
        if located is None:
            self._decided(request, Fetched(why="no_answer", lookup_s=known_s - began_s))
            return
        sizes = [Missing(tokens, tokens * self.form.token_bytes) for _, tokens in wanted]
        choices = self.choice.choose(sizes, located.places, located.links, lambda tier: self._links.learning((tier,)))
        for tier, number in slow_links(choices, located).items():
            if self._links.remeasures(tier, began_s):
                self._tiers.runner.start(_unread(store.load_ones(root, [wanted[number]], FETCH_S)))
        for address, choice, place in zip(missing, choices, located.places, strict=True):
            if place is not None and not choice.blocks:
                _last(self._left, address, place)
        chosen = [number for number, choice in enumerate(choices) if choice.blocks]
        came = 0
        if chosen:
            learns = {place for choice, place in zip(choices, located.places, strict=True) if choice.why is Why.LEARN}
            learnt = {place for place in learns if place is not None}
            self._links.learns(learnt)
            bound_s = self.choice.bound_s(choices)
            within_s = FETCH_S if learnt else bound_s  # what comes too late has measured its link
            parts = [wanted[number] for number in chosen]
            found = await self._asked(
                self._tiers,
                lambda: store.load_ones(root, parts, within_s),
                bound_s + (0.0 if learnt else LEAST_WAIT_S),
                lambda: self._links.learnt(learnt),
            )
            if epoch == self.epoch_of(request.salt):
                came = self._took(request.salt, missing, chosen, found or ())
        self._decided(request, decided(choices, came, time.monotonic() - known_s, known_s - began_s))

    def fetched(self, request_id: str) -> Fetched | None:
        """What was decided about a request's chunks, of the last few thousand requests for which tiers were asked."""
        return self._fetched.get(request_id)

    def epoch_of(self, salt: bytes) -> int:
        """How often what is kept under this salt was forgotten."""
        return self._purged_all + self._purged[Scope.of(salt).tenant]

    def forget(self, tenants: Tenants, apart: Collection[str]) -> int:
        self.epoch += 1
        self._purged.update(tenants or ())
        self._purged_all += tenants is None
        self._apart = frozenset(apart)
        self._left.clear()  # only hints
        gone = [address for address, kept in self._kept.items() if tenants is None or kept.tenant in tenants]
        for address in gone:
            self._drop(address)
        return len(gone)

    def counters(self) -> dict[str, float]:
        return {**self.tally.counters(), "blend_memory_bytes": self._used}

    def close(self) -> None:
        self._kept.clear()
        self._used = 0

    async def _asked(
        self,
        tiers: TierStore,
        work: Callable[[], Awaitable[T]],
        within_s: float,
        ended: Callable[[], None] = lambda: None,
    ) -> T | None:
        """What comes from the tiers' own thread; None where nothing does in time. `ended` is called once it has, even late."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T | None] = loop.create_future()

        def give(found: T | None) -> None:
            ended()
            if not answer.done():
                answer.set_result(found)

        async def ask() -> None:
            found: T | None = None
            try:
                found = await work()
            finally:
                with suppress(RuntimeError):  # who asked is gone, with the loop
                    loop.call_soon_threadsafe(give, found)

        tiers.runner.start(ask())
        await asyncio.wait((answer,), timeout=within_s)
        return answer.result() if answer.done() else None

    def _took(
        self,
        salt: bytes,
        missing: Mapping[bytes, tuple[int, ...]],
        chosen: Sequence[int],
        found: Sequence[Whole | None],
    ) -> int:
        """Keep what has come; how many chunks that is."""
        every = list(missing.items())
        came = 0
        for number, whole in zip(chosen, found, strict=False):
            if whole is not None:
                address, tokens = every[number]
                chunk = from_payload(tokens, self.form.layers, self.form.dtype, whole.payload, self._device)
                self._keep(address, chunk, salt, whole.dated)
                came += 1
        return came

    def _decided(self, request: Request, fetched: Fetched) -> None:
        self.tally.add("chunks_fetched", fetched.came)
        self.tally.add("chunks_left", fetched.left)
        _last(self._fetched, request.id, fetched)

    def _root(self, salt: bytes) -> bytes:
        return self._envelope.root(self._namespace, salt)

    def _part(self, salt: bytes, tokens: Sequence[int]) -> Part:
        return self.form.part(self._root(salt), tokens)

    def _missing(self, request: Request) -> dict[bytes, tuple[int, ...]]:
        if request.chunks is None:
            return {}
        every = [request.prompt[first:end] for first, end in request.chunks.spans]
        by_address = {self.address(request.salt, tokens): tokens for tokens in every}
        return {address: tokens for address, tokens in by_address.items() if not self._has(address)}

    def _has(self, address: bytes) -> bool:
        """Whether a chunk is in memory that may be used; one that is too old goes."""
        kept = self._kept.get(address)
        if kept is not None and not self._retention.allows(kept.dated):
            self._drop(address)
            kept = None
        return kept is not None

    def _drop(self, address: bytes) -> None:
        self._used -= _bytes(self._kept.pop(address).chunk)

    def _keep(self, address: bytes, chunk: ChunkKV, salt: bytes, dated: int) -> None:
        size = _bytes(chunk)
        if self._has(address) or size > self._capacity:
            return
        self._kept[address] = _Kept(chunk, Scope.of(salt).tenant, dated)
        self._used += size
        while self._used > self._capacity:
            self._drop(next(iter(self._kept)))


def _bytes(chunk: ChunkKV) -> int:
    return chunk.keys.nbytes + chunk.values.nbytes


def _last(known: OrderedDict[K, T], key: K, value: T) -> None:
    """Remember, and forget what is oldest."""
    known[key] = value
    if len(known) > _KNOWN:
        known.popitem(last=False)


async def _unread(load: Awaitable[object]) -> None:
    """A link is measured by it, in nobody's way."""
    await load

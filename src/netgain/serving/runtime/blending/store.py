"""Chunks of one engine: as tensors in memory, the ones used last, and beyond it in the engine's KV tiers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import torch

from netgain.serving.blocks.keys import Namespace
from netgain.serving.engine.request import Request
from netgain.serving.runtime.blending.chunks import ChunkKV, from_payload
from netgain.serving.runtime.blending.tally import Tally
from netgain.serving.runtime.build_store import TierStore
from netgain.serving.tiers.blending.stored import ChunkForm
from netgain.serving.tiers.envelope import PlainEnvelope
from netgain.serving.tiers.object import Part

FETCH_S = 2.0


class ChunkStore:
    """Implements the engine's ChunkSource. At most `memory_bytes` of chunks in memory. `namespace` is that of chunks (see
    chunk_namespace), `lead` what they are computed behind. `tiers` (None: none) belong to somebody else; with `reads` False
    nothing is taken from them. Methods are called from the engine's event loop, `close` when it has ended."""

    def __init__(
        self,
        form: ChunkForm,
        namespace: Namespace,
        lead: Sequence[int],
        *,
        device: torch.device,
        memory_bytes: int,
        tiers: TierStore | None = None,
        reads: bool = True,
    ) -> None:
        self.form = form
        self.lead = tuple(lead)
        self.tally = Tally()
        self._namespace, self._device, self._tiers, self._reads = namespace, device, tiers, reads
        self._envelope = PlainEnvelope() if tiers is None else tiers.store.envelope
        self._capacity = memory_bytes
        self._kept: OrderedDict[bytes, ChunkKV] = OrderedDict()
        self._used = 0

    def address(self, salt: bytes, tokens: Sequence[int]) -> bytes:
        """Under what a chunk of a tenant is kept, here and in tiers."""
        return self._part(salt, tokens).address()

    def find(self, salt: bytes, tokens: Sequence[int]) -> ChunkKV | None:
        """The chunk, if it is in memory."""
        address = self.address(salt, tokens)
        found = self._kept.get(address)
        if found is not None:
            self._kept.move_to_end(address)
        return found

    def add(self, salt: bytes, chunk: ChunkKV) -> None:
        """Keep a chunk that was computed, and offer it to the tiers."""
        self._keep(self.address(salt, chunk.tokens), chunk)
        if self._tiers is not None:
            stored = self.form.stored(self._root(salt), chunk.tokens, chunk.payload())
            store = self._tiers.store

            async def put() -> None:
                store.put_one(stored)

            self._tiers.runner.start(put())

    def lacks(self, request: Request) -> bool:
        return self._tiers is not None and self._reads and bool(self._missing(request))

    async def fetch(self, request: Request) -> None:
        if self._tiers is None or not self._reads or not (missing := self._missing(request)):
            return
        wanted = [(self._part(request.salt, tokens), len(tokens)) for tokens in missing.values()]
        found = await self._loaded(self._tiers, self._root(request.salt), wanted)
        for (address, tokens), payload in zip(missing.items(), found, strict=True):
            if payload is not None:
                self.tally.add("chunks_fetched")
                chunk = from_payload(tokens, self.form.layers, self.form.dtype, payload, self._device)
                self._keep(address, chunk)

    def forget(self) -> int:
        count = len(self._kept)
        self._kept.clear()
        self._used = 0
        return count

    def counters(self) -> dict[str, float]:
        return {**self.tally.counters(), "blend_memory_bytes": self._used}

    def close(self) -> None:
        self._kept.clear()
        self._used = 0

    async def _loaded(
        self, tiers: TierStore, root: bytes, wanted: Sequence[tuple[Part, int]]
    ) -> Sequence[memoryview | None]:
        """What comes from the tiers' own thread, in time."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[memoryview | None]] = loop.create_future()

        def give(found: Sequence[memoryview | None]) -> None:
            if not answer.done():
                answer.set_result(found)

        async def work() -> None:
            found: Sequence[memoryview | None] = [None] * len(wanted)
            try:
                found = await tiers.store.load_ones(root, wanted, FETCH_S)
            finally:
                with suppress(RuntimeError):  # who asked is gone, with the loop
                    loop.call_soon_threadsafe(give, found)

        tiers.runner.start(work())
        try:
            return await asyncio.wait_for(answer, FETCH_S + 1.0)
        except TimeoutError:
            return [None] * len(wanted)

    def _root(self, salt: bytes) -> bytes:
        return self._envelope.root(self._namespace, salt)

    def _part(self, salt: bytes, tokens: Sequence[int]) -> Part:
        return self.form.part(self._root(salt), tokens)

    def _missing(self, request: Request) -> dict[bytes, tuple[int, ...]]:
        if request.chunks is None:
            return {}
        every = [request.prompt[first:end] for first, end in request.chunks.spans]
        by_address = {self.address(request.salt, tokens): tokens for tokens in every}
        return {address: tokens for address, tokens in by_address.items() if address not in self._kept}

    def _keep(self, address: bytes, chunk: ChunkKV) -> None:
        size = _bytes(chunk)
        if address in self._kept or size > self._capacity:
            return
        self._kept[address] = chunk
        self._used += size
        while self._used > self._capacity:
            _, gone = self._kept.popitem(last=False)
            self._used -= _bytes(gone)


def _bytes(chunk: ChunkKV) -> int:
    return chunk.keys.nbytes + chunk.values.nbytes

"""Chunks of one engine: as tensors in memory, the ones used last, and beyond it in tiers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import torch

from netgain.serving.blocks.keys import Namespace
from netgain.serving.engine.request import Request
from netgain.serving.runtime.blending.chunks import ChunkKV, chunk_dtype, from_payload
from netgain.serving.tiers.blending.keys import chunk_root
from netgain.serving.tiers.blending.stored import ChunkForm
from netgain.serving.tiers.object import Refused
from netgain.serving.tiers.stack import Stack

FETCH_S = 2.0


class ChunkStore:
    """Implements the engine's ChunkSource. At most `memory_bytes` of chunks in memory; `stack` (None: no tiers) is owned.
    Methods are called from the engine's event loop, `close` when it has ended."""

    def __init__(
        self,
        namespace: Namespace,
        lead: Sequence[int],
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        memory_bytes: int,
        stack: Stack | None = None,
    ) -> None:
        self.lead = tuple(lead)
        self._namespace, self._device, self._stack = namespace, device, stack
        self._shape = (layers, kv_heads, head_dim, chunk_dtype(kv_dtype))
        self._capacity = memory_bytes
        self._kept: OrderedDict[bytes, ChunkKV] = OrderedDict()
        self._used = 0

    def form(self, salt: bytes) -> ChunkForm:
        """How chunks of a tenant are stored."""
        layers, kv_heads, head_dim, dtype = self._shape
        root = chunk_root(self._namespace, self.lead, dtype, salt)
        return ChunkForm(root=root, layers=layers, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)

    def find(self, salt: bytes, tokens: Sequence[int]) -> ChunkKV | None:
        """The chunk, if it is in memory."""
        address = self.form(salt).address(tokens)
        found = self._kept.get(address)
        if found is not None:
            self._kept.move_to_end(address)
        return found

    def add(self, salt: bytes, chunk: ChunkKV) -> None:
        """Keep a chunk that was computed, and offer it to the tiers."""
        form = self.form(salt)
        address = form.address(chunk.tokens)
        self._keep(address, chunk)
        if self._stack is not None:
            self._stack.offer(address, form.pack(chunk.tokens, chunk.payload()))

    def lacks(self, request: Request) -> bool:
        return self._stack is not None and bool(self._missing(request))

    async def fetch(self, request: Request) -> None:
        missing = self._missing(request)
        if self._stack is None or not missing:
            return
        form = self.form(request.salt)
        found = await self._stack.load(list(missing), FETCH_S)
        for (address, tokens), data in zip(missing.items(), found, strict=True):
            if data is None:
                continue
            try:
                payload = form.unpack(tokens, data)
            except Refused:  # of another layout: the tier has checked the bytes themselves
                continue
            self._keep(address, from_payload(tokens, form.layers, form.dtype, payload, self._device))

    async def settle(self) -> None:
        if self._stack is not None:
            await self._stack.settle()

    def close(self) -> None:
        self._kept.clear()
        self._used = 0
        if self._stack is not None:
            stack, self._stack = self._stack, None
            try:
                asyncio.get_running_loop().create_task(stack.close())
            except RuntimeError:
                asyncio.run(stack.close())

    def _missing(self, request: Request) -> dict[bytes, tuple[int, ...]]:
        if request.chunks is None:
            return {}
        form = self.form(request.salt)
        every = [request.prompt[first:end] for first, end in request.chunks.spans]
        by_address = {form.address(tokens): tokens for tokens in every}
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

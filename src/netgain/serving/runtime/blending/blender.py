"""The part of an executor that computes prompts with chunks."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from netgain.ledger.records import BlendCounts
from netgain.serving.engine.batch import Segment
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.selective import SelectiveForward
from netgain.serving.runtime.blending.chunks import ChunkKV, GrowingChunk
from netgain.serving.runtime.blending.join import Placed, join
from netgain.serving.runtime.blending.store import ChunkStore
from netgain.serving.tiers.blending.fetching import with_fetched
from netgain.serving.tiers.blending.joined import counts
from netgain.serving.tiers.blending.selection import Selection

_GROWING = 4  # chunks that are computed piece by piece at the same time; one more begins the oldest anew


class _Growing(NamedTuple):
    """A chunk that is not whole yet, and its tenant's epoch (see ChunkStore) when it was computed last."""

    chunk: GrowingChunk
    salt: bytes
    epoch: int


class Blended(NamedTuple):
    """`logits` float32 [scored + rows, vocab] of the segment's last rows."""

    logits: Tensor
    counts: BlendCounts


class Blender:
    """Joins chunks from `store`, which are computed by themselves where it has none. `default` is what a request gets that
    says nothing."""

    def __init__(self, decoder: Decoder, store: ChunkStore, default: Selection) -> None:
        self._decoder, self._store, self._default = decoder, store, default
        self._forward = SelectiveForward(decoder)
        self._growing: OrderedDict[bytes, _Growing] = OrderedDict()
        self._epoch = store.epoch

    def run(self, segment: Segment, kv: PagedKV) -> Blended:
        """Compute a segment with chunks, which ends at the end of a piece or of the prompt; its KV goes to its blocks."""
        assert segment.chunks is not None
        self._forget()
        began_s, tally = time.perf_counter(), self._store.tally
        start, end = segment.start, segment.start + len(segment.tokens)
        selection = segment.chunks.selection or self._default
        spans = [span for span in segment.chunks.spans if start < span[1] and span[0] < end]
        placed, alone, found = [], 0, 0
        for first, last in spans if not selection.exact else ():  # exactly computed chunks are taken from nowhere
            chunk, fresh = self._chunk(segment, tuple(segment.context[first:last]), end - first, kv)
            alone += fresh
            if start <= first:
                found += not fresh
                tally.add("chunks_missed" if fresh else "chunks_found")
            placed.append(Placed(chunk, first))
        alone_s = time.perf_counter() - began_s
        joined = join(
            self._decoder,
            self._forward,
            kv,
            torch.tensor(segment.block_table, dtype=torch.int32),
            segment.context[:end],
            placed,
            selection,
            start=start,
            wanted=len(segment.tokens) - segment.scored_from if segment.scored else segment.rows,
        )
        here = sum(min(last, end) - max(first, start) for first, last in spans)
        recomputed = here - joined.chunk_tokens + joined.recomputed
        if segment.rows:
            tally.add("requests")
            tally.add("exact_requests", selection.exact)
        for name, amount in (
            ("chunk_tokens", here),
            ("recomputed_tokens", recomputed),
            ("alone_tokens", alone),
            ("rotation_s", joined.rotation_s),
            ("alone_s", alone_s),
            ("join_s", time.perf_counter() - began_s - alone_s - joined.rotation_s),
        ):
            tally.add(name, amount)
        whole = len(segment.chunks.spans)
        logits = joined.logits[: len(segment.scored) + segment.rows]
        counted = counts(selection, whole, here, recomputed, alone, found, joined.rotation_s, alone_s)
        fetched = self._store.fetched(segment.request_id)
        return Blended(logits, counted if fetched is None else with_fetched(counted, fetched))

    def _chunk(self, segment: Segment, tokens: tuple[int, ...], until: int, kv: PagedKV) -> tuple[ChunkKV, int]:
        """The chunk, of which the first `until` tokens must be there, and how many were computed for that."""
        salt = segment.salt
        if (found := self._store.find(salt, tokens)) is not None:
            return found, 0
        address = self._store.address(salt, tokens)
        begun = self._growing.pop(address, None)
        growing = (
            GrowingChunk(self._decoder, self._forward, self._store.lead, tokens, kv.dtype, kv.block_tokens)
            if begun is None
            else begun.chunk
        )
        began_s = time.perf_counter()
        fresh = growing.grow(until)
        self._store.choice.computed(fresh, time.perf_counter() - began_s)
        if growing.done and self._store.shares(segment.request_id):
            self._store.add(salt, growing.chunk)
        else:
            self._growing[address] = _Growing(growing, salt, self._store.epoch_of(salt))
            if len(self._growing) > _GROWING:
                self._growing.popitem(last=False)
        return growing.chunk, fresh

    def _forget(self) -> None:
        """What was begun for tenants that have been purged since."""
        if self._epoch != self._store.epoch:
            self._epoch = self._store.epoch
            for address, one in list(self._growing.items()):
                if one.epoch != self._store.epoch_of(one.salt):
                    del self._growing[address]

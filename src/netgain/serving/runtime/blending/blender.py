"""The part of an executor that computes prompts with chunks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from netgain.ledger.records import BlendCounts
from netgain.serving.engine.batch import Segment
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.selective import SelectiveForward
from netgain.serving.runtime.blending.chunks import compute_alone
from netgain.serving.runtime.blending.join import Placed, join
from netgain.serving.runtime.blending.store import ChunkStore
from netgain.serving.tiers.blending.joined import counts
from netgain.serving.tiers.blending.selection import Selection


class Blended(NamedTuple):
    """`logits` float32 [rows, vocab] of the segment's last rows."""

    logits: Tensor
    counts: BlendCounts


class Blender:
    """Joins chunks from `store`, which are computed by themselves where it has none. `default` is what a request gets that
    says nothing."""

    def __init__(self, decoder: Decoder, store: ChunkStore, default: Selection) -> None:
        self._decoder, self._store, self._default = decoder, store, default
        self._forward = SelectiveForward(decoder)

    def run(self, segment: Segment, kv: PagedKV) -> Blended:
        """Compute a segment with chunks, whose KV goes to its blocks."""
        assert segment.chunks is not None
        start, selection = segment.start, segment.chunks.selection or self._default
        tokens = [0] * start + list(segment.tokens)  # what stands before is there already
        # exactly computed chunks are taken from nowhere
        spans = [] if selection.exact else [(first, end) for first, end in segment.chunks.spans if first >= start]
        placed, alone = [], 0
        for first, end in spans:
            chunk = tuple(tokens[first:end])
            found = self._store.find(segment.salt, chunk)
            if found is None:
                alone += len(chunk)
                found = compute_alone(self._decoder, self._forward, self._store.lead, chunk, kv.dtype, kv.block_tokens)
                self._store.add(segment.salt, found)
            placed.append(Placed(found, first))
        table = torch.tensor(segment.block_table, dtype=torch.int32)
        joined = join(
            self._decoder,
            self._forward,
            kv,
            table,
            tokens,
            placed,
            selection,
            start=start,
            wanted=max(1, segment.rows),
        )
        whole = sum(end - first for first, end in segment.chunks.spans)
        outcome = counts(
            selection, len(segment.chunks.spans), whole, whole - joined.chunk_tokens + joined.recomputed, alone
        )
        return Blended(joined.logits[joined.logits.shape[0] - segment.rows :], outcome)

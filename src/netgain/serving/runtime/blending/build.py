"""Puts blending together from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.ledger.clock import Clock
from netgain.serving.blocks.keys import Namespace
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.decoder import Decoder
from netgain.serving.runtime.blending.blender import Blender
from netgain.serving.runtime.blending.store import ChunkStore
from netgain.serving.runtime.config import BlendingSettings
from netgain.serving.tiers.blending.calibration import read_calibration
from netgain.serving.tiers.blending.selection import Deviating, Naive, Selection
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier


class Blending(NamedTuple):
    """`note` says what a user should know about how chunks will be joined."""

    blender: Blender
    store: ChunkStore
    note: str


def build_blending(
    settings: BlendingSettings,
    decoder: Decoder,
    namespace: Namespace,
    kv_dtype: torch.dtype,
    clock: Clock,
) -> Blending:
    """Raises UsageError for a folder that cannot be made, or a model whose chunks cannot be moved."""
    refuse_unmovable(decoder.config)
    selection, note = _selection(settings, namespace)
    config = decoder.config
    store = ChunkStore(
        namespace,
        chunk_lead(config),
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        kv_dtype=kv_dtype,
        device=decoder.device,
        memory_bytes=settings.memory_bytes,
        stack=_stack(settings, clock),
    )
    return Blending(Blender(decoder, store, selection), store, note)


def chunk_lead(config: ModelConfig) -> Sequence[int]:
    """What chunks are computed behind: the model's start token, where it has one. Without one a chunk's own first token takes
    the attention that a text's first token draws, as it would at the beginning of any text of that model."""
    return () if config.bos is None else (config.bos,)


def refuse_unmovable(config: ModelConfig) -> None:
    """Raises UsageError, naming the model's architecture, where a chunk computed at one place cannot stand at another. What
    the model room loads has rotary positions in every layer, so only a chunk without any layer behind another is none."""
    if config.layers < 2:
        raise UsageError(
            f"chunks of a {config.architecture} model with one layer cannot be blended: what to compute anew is found in "
            "the second layer"
        )


def _selection(settings: BlendingSettings, namespace: Namespace) -> tuple[Selection, str]:
    if settings.ratio != "calibrated":
        selection = selection_of(settings.ratio)
        return selection, f"chunks are joined {selection}, as set" + ("" if selection.exact else " (lossy)")
    try:
        found = read_calibration(cache_folder(), namespace)
    except UsageError:  # nowhere to keep anything
        found = None
    if found is None:
        return Deviating(1.0), (
            "chunks are computed anew in full, which is exact and saves nothing, because blending has not been calibrated "
            "for this model: run `netgain blend`, or set engine.blending.ratio"
        )
    selection = selection_of(found.ratio)
    kind = "exact" if selection.exact else "lossy"
    judged = "" if found.judged else "; the model is too weak to judge its answers, so by its laws alone"
    return selection, f"chunks are joined {selection}, as calibrated ({kind}{judged})"


def selection_of(ratio: float) -> Selection:
    """0 is naive, 1 exact."""
    return Naive() if ratio == 0 else Deviating(ratio)


def _stack(settings: BlendingSettings, clock: Clock) -> Stack | None:
    if settings.folder is None:
        return None
    medium = DiskMedium(Path(settings.folder).expanduser(), LRU(settings.folder_bytes))
    return Stack([Tier("chunks", medium, clock)], clock)

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
from netgain.serving.model.load import LoadedModel
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
    """What the executor gets, and what the engine gets."""

    blender: Blender
    store: ChunkStore


def build_blending(
    settings: BlendingSettings,
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    clock: Clock,
    draft: str | None,
    notes: list[str],
) -> Blending | None:
    """None where it is not enabled; `notes` get how chunks are joined. Raises UsageError for a folder that cannot be made, and
    beside a `draft` model. Every model that the model room loads has rotary positions in all of its layers, so its chunks can
    be moved; what has none, or turns only a part of a head, is refused there by name."""
    if not settings.enabled:
        return None
    if draft is not None:
        raise UsageError(
            f"blending together with a draft model ({draft}) is not supported: a draft would have to read every chunk itself. "
            "Leave one of them out; ngram and suffix drafts go together with it"
        )
    namespace = loaded.namespace(kv_dtype)
    selection, note = _selection(settings, namespace)
    notes.append(note)
    config, decoder = loaded.config, loaded.model
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
    return Blending(Blender(decoder, store, selection), store)


def chunk_lead(config: ModelConfig) -> Sequence[int]:
    """What chunks are computed behind: the model's start token, where it has one. Without one a chunk's own first token takes
    the attention that a text's first token draws, as it would at the beginning of any text of that model."""
    return () if config.bos is None else (config.bos,)


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
            "for this model: run `netgain cache blend`, or set engine.blending.ratio"
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

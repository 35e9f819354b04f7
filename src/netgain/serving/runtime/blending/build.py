"""Puts blending together from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.retention import Retention
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.load import LoadedModel
from netgain.serving.runtime.blending.blender import Blender
from netgain.serving.runtime.blending.chunks import chunk_dtype
from netgain.serving.runtime.blending.store import ChunkStore
from netgain.serving.runtime.build_store import TierStore
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.kv_settings import BlendingSettings
from netgain.serving.tiers.blending.calibration import Calibration, read_calibration
from netgain.serving.tiers.blending.fetching import ChunkChoice
from netgain.serving.tiers.blending.keys import chunk_namespace
from netgain.serving.tiers.blending.selection import PIECE_TOKENS, Deviating, First, Naive, Selection
from netgain.serving.tiers.blending.stored import CHUNK, ChunkForm
from netgain.serving.tiers.object import Shape


class Blending(NamedTuple):
    """What the executor gets, and what the engine gets."""

    blender: Blender
    store: ChunkStore


def chunk_shapes(settings: BlendingSettings, config: ModelConfig, kv_dtype: torch.dtype) -> dict[str, Shape]:
    """What chunks look like in tiers; nothing where there are none."""
    return {CHUNK: _form(config, kv_dtype).shape} if settings.enabled else {}


def build_blending(
    config: EngineConfig,
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    tiers: TierStore | None,
    heads: str | None,
    notes: list[str],
    retention: Retention | None = None,
) -> Blending | None:
    """None where it is not enabled; `notes` get how chunks are joined. Chunks are kept in `tiers`, too, where there are some, and
    used no longer than `retention` allows. Raises UsageError beside `heads` that draft from the target's features: tokens that
    are joined are not computed in all layers, so they have none. (A draft model of its own reads the whole prompt by itself.)
    Every model that the model room loads has rotary positions in all of its layers, so its chunks can be moved; what has none,
    or turns only a part of a head, is refused there by name."""
    settings = config.blending
    if not settings.enabled:
        return None
    if heads is not None:
        raise UsageError(
            f"blending together with trained heads ({heads}) is not supported: they draft from what the target's layers give for "
            "every token of the prompt, and most tokens of chunks are not computed. Leave one of them out; draft models, ngram "
            "and suffix drafts go together with blending"
        )
    namespace = loaded.namespace(kv_dtype)
    selection, note = _selection(settings, namespace)
    notes.append(note)
    form, lead = _form(loaded.config, kv_dtype), chunk_lead(loaded.config)
    store = ChunkStore(
        form,
        chunk_namespace(namespace, lead, form.dtype),
        lead,
        device=loaded.model.device,
        memory_bytes=settings.memory_bytes,
        tiers=tiers,
        choice=ChunkChoice(config.kv.policy),
        retention=retention,
    )
    return Blending(Blender(loaded.model, store, selection), store)


def blending_told(settings: BlendingSettings, loaded: LoadedModel, kv_dtype: torch.dtype) -> dict[str, Any]:
    """For /v1/models, also where it is off: whether chunks are joined, at which `ratio` they are or would be (None: nobody has
    set or calibrated one), the share of their tokens that is `recomputed` at it in the mean of the layers, and what the
    calibration found, in words."""
    if settings.first is not None:
        ratio, source, says = None, None, f"the first {settings.first} tokens of each chunk are computed anew"
    elif settings.ratio != "calibrated":
        ratio, source, says = settings.ratio, "set", None
    else:
        found = _calibration(loaded.namespace(kv_dtype))
        ratio = None if found is None else found.ratio
        source, says = (None, None) if found is None else ("calibrated", _found(found))
    return {
        "enabled": settings.enabled,
        "ratio": ratio,
        "recomputed": None if ratio is None else _recomputed(ratio, loaded.config.layers),
        "source": source,
        "says": says,
    }


def _recomputed(ratio: float, layers: int) -> float:
    selection = selection_of(ratio)
    if not isinstance(selection, Deviating):
        return 0.0
    return sum(selection.counts(PIECE_TOKENS, layers)) / layers / PIECE_TOKENS


def _found(calibration: Calibration) -> str:
    """What the largest ratio below 1 cost, which is the gentlest that was tried; or the one that passed."""
    tried = [point for point in calibration.points if point.ratio is not None and point.ratio < 1]
    if not tried:
        return "no ratio below 1 was tried"
    shown = next((point for point in tried if point.ratio == calibration.ratio), None)
    passed = shown is not None
    shown = shown or max(tried, key=lambda point: point.ratio or 0.0)
    return (
        f"{'the smallest ratio that passed is' if passed else 'no ratio below 1 passed; the largest that was tried is'} "
        f"{shown.ratio:g}: KL {shown.kl[0]:.3f} nats per token ({shown.kl[1]:.3f} to {shown.kl[2]:.3f}), limit "
        f"{calibration.gate.kl:g}"
    )


def _calibration(namespace: Namespace) -> Calibration | None:
    try:
        return read_calibration(cache_folder(), namespace)
    except UsageError:  # nowhere to keep anything
        return None


def _form(config: ModelConfig, kv_dtype: torch.dtype) -> ChunkForm:
    return ChunkForm(
        layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=chunk_dtype(kv_dtype)
    )


def chunk_lead(config: ModelConfig) -> Sequence[int]:
    """What chunks are computed behind: the model's start token, where it has one. Without one a chunk's own first token takes
    the attention that a text's first token draws, as it would at the beginning of any text of that model."""
    return () if config.bos is None else (config.bos,)


def _selection(settings: BlendingSettings, namespace: Namespace) -> tuple[Selection, str]:
    if settings.first is not None or settings.ratio != "calibrated":
        selection = First(settings.first) if settings.first is not None else selection_of(float(settings.ratio))
        return selection, f"chunks are joined {selection}, as set" + ("" if selection.exact else " (lossy)")
    found = _calibration(namespace)
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

"""Which tensors a head's file must hold: whatever is missing, of another shape or not understood is refused by name."""

from __future__ import annotations

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.drafts.feature_head import one_layer
from netgain.serving.model.drafts.manifest import Manifest
from netgain.serving.model.weights import TORCH_TYPES, WeightSource, expected_shapes, some

_START = "model.layers.0."


def head_shapes(manifest: Manifest, config: ModelConfig, rows: int) -> dict[str, tuple[int, ...]]:
    """By name, for a head that can say `rows` tokens of the target with this `config`."""
    hidden = config.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fuse.weight": (hidden, len(manifest.taps) * hidden),
        "norm.weight": (hidden,),
        "head.weight": (rows, hidden),
        "ids": (rows,),
    }
    if manifest.kind == "medusa":
        for number in range(manifest.positions):
            shapes |= {f"heads.{number}.weight": (hidden, hidden), f"heads.{number}.bias": (hidden,)}
        return shapes
    shapes |= {
        "token_norm.weight": (hidden,),
        "feature_norm.weight": (hidden,),
        "input.weight": (hidden, 2 * hidden),
    }
    layer = expected_shapes(one_layer(config))
    return shapes | {name.replace(_START, "layer."): shape for name, shape in layer.items() if name.startswith(_START)}


def check_head(source: WeightSource, manifest: Manifest, config: ModelConfig) -> None:
    """Raises UsageError for a file that is not what its manifest says, for the target with this `config`."""
    where = source.files[0]
    taps = manifest.taps
    if not taps or list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] < config.layers:
        raise UsageError(
            f"{where.parent} reads the target's layers {list(taps)}, which must be ascending and within 0 to "
            f"{config.layers - 1}; train it again"
        )
    present = source.names()
    if "ids" not in present:
        raise UsageError(f"{where}: tensor ids is missing; train the draft again")
    rows = source.shape("ids")
    expected = head_shapes(manifest, config, rows[0] if rows else 0)
    missing = [name for name in expected if name not in present]
    if missing:
        raise UsageError(f"{where}: tensor {some(missing)} missing; train the draft again")
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise UsageError(f"{where}: {name} is {source.shape(name)}, its manifest and the target say {shape}")
        kind, known = source.kind(name), ("I64",) if name == "ids" else tuple(TORCH_TYPES)
        if kind not in known:
            raise UsageError(f"{where}: tensor {name} has type {kind}; supported: {', '.join(known)}")
    left = sorted(present - expected.keys())
    if left:
        raise UsageError(f"{where}: tensor {some(left)} not part of a {manifest.kind} draft")

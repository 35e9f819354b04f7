"""Untrained heads in the format of trained ones, for tests of everything but their guesses."""

from datetime import UTC, datetime

import torch
from safetensors.torch import save_file

from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.digest import files_digest
from netgain.serving.model.drafts.feature_head import one_layer
from netgain.serving.model.drafts.manifest import WEIGHTS, Manifest, write_manifest
from netgain.serving.model.load import weight_source
from netgain.serving.model.weights import expected_shapes


def write_head(folder, target, kind, *, taps, said=None, positions=3, seed=0):
    """A random head for the model in `target`; says only the ids `said` (None: all)."""
    checkpoint = open_checkpoint(target)
    config = checkpoint.config
    torch.manual_seed(seed)
    ids = torch.arange(config.vocab) if said is None else torch.tensor(sorted(said))
    hidden = config.hidden
    shapes = {"fuse.weight": (hidden, len(taps) * hidden), "norm.weight": (hidden,), "head.weight": (len(ids), hidden)}
    if kind == "medusa":
        for number in range(positions):
            shapes |= {f"heads.{number}.weight": (hidden, hidden), f"heads.{number}.bias": (hidden,)}
    else:
        shapes |= {
            "token_norm.weight": (hidden,),
            "feature_norm.weight": (hidden,),
            "input.weight": (hidden, 2 * hidden),
        }
        start = "model.layers.0."
        shapes |= {
            name.replace(start, "layer."): shape
            for name, shape in expected_shapes(one_layer(config)).items()
            if name.startswith(start)
        }
    tensors = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    folder.mkdir()
    save_file({**tensors, "ids": ids}, folder / WEIGHTS)
    write_manifest(
        folder,
        Manifest(
            kind=kind,
            target=files_digest(weight_source(checkpoint).files),
            target_name=checkpoint.name,
            tokenizer=checkpoint.tokenizer.digest,
            data="none",
            taps=taps,
            positions=positions,
            recipe={},
            acceptance=None,
            held_out=0,
            made_at=datetime.now(UTC).isoformat(),
        ),
    )
    return tensors

"""Drafts of every kind for the chain model (tests/serving/conftest.py) which say what it says.

The chain model's hidden state is the embedding of the last token, a unit vector, and its head maps that to the token behind it.
So a head that is handed the token is the target's own, and one that looks further ahead is a power of it."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from netgain.serving.model.drafts.manifest import WEIGHTS
from tests.serving.conftest import ChainModel
from tests.serving.runtime.heads import write_head

POSITIONS = 3
_LOUD = 50.0  # so much louder than the feature itself that a Medusa head drowns it
_LAYER = "model.layers.0."


def chain_head(folder: Path, model: ChainModel, kind: str) -> Path:
    """A `feature` head, or `medusa` heads for three places."""
    random = write_head(folder, model.folder, kind, taps=(0,), positions=POSITIONS)
    following = load_file(model.folder / "model.safetensors")["lm_head.weight"]
    size = len(following)
    tensors = {name: torch.zeros_like(tensor) for name, tensor in random.items()}
    tensors |= {name: torch.ones_like(tensor) for name, tensor in random.items() if "norm" in name}
    tensors["fuse.weight"] = torch.eye(size)
    if kind == "medusa":
        ahead = following
        for number in range(POSITIONS):
            ahead = following @ ahead  # head 0 says what comes behind the token that the target has chosen
            tensors[f"heads.{number}.weight"] = _LOUD * ahead
        tensors["head.weight"] = torch.eye(size)
    else:
        tensors["input.weight"] = torch.cat(
            (torch.eye(size), torch.zeros(size, size)), dim=1
        )  # the token, not the feature
        tensors["head.weight"] = following.clone()
    save_file({**tensors, "ids": torch.arange(size)}, folder / WEIGHTS)
    return folder


def chain_with_mtp(folder: Path, model: ChainModel) -> Path:
    """The chain model as a checkpoint of MiMo's format, with a module that reads the token and not the hidden state."""
    shutil.copytree(model.folder, folder)
    held = load_file(folder / "model.safetensors")
    size = len(held["lm_head.weight"])
    held |= {f"{_LAYER}self_attn.{name}_proj.bias": torch.zeros(size) for name in "qkv"}
    start = "model.mtp_layers.0."
    held |= {name.replace(_LAYER, start): tensor.clone() for name, tensor in held.items() if name.startswith(_LAYER)}
    held |= {f"{start}{name}_layernorm.weight": torch.ones(size) for name in ("token", "hidden", "final")}
    held[f"{start}input_proj.weight"] = torch.cat((torch.zeros(size, size), torch.eye(size)), dim=1)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    path.write_text(json.dumps(config))
    return folder

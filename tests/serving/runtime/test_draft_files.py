"""A draft's files that are damaged, incomplete or of another netgain are refused with what is wrong with them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from netgain.errors import UsageError
from netgain.serving.model.drafts.manifest import MANIFEST, WEIGHTS
from netgain.serving.training.inspect import inspect
from tests.serving.runtime.heads import write_head
from tests.serving.runtime.test_drafts import engine


def changed(folder, **tensors) -> None:
    """Tensors of the file replaced, or (None) left out; __ stands for a dot."""
    held = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        held.pop(name.replace("__", "."), None)
        if tensor is not None:
            held[name.replace("__", ".")] = tensor
    save_file(held, folder / WEIGHTS)


@pytest.fixture(params=["feature", "medusa"])
def head(request, tiny, tmp_path):
    target = tiny()
    write_head(tmp_path / "head", target.folder, request.param, taps=(0,), said=range(0, 300, 2))
    return target.folder, tmp_path / "head"


@pytest.mark.parametrize("name", ["fuse.weight", "norm.weight", "head.weight", "ids"])
def test_a_missing_tensor_is_named(head, name):
    target, folder = head
    changed(folder, **{name.replace(".", "__"): None})
    with pytest.raises(UsageError, match=f"tensor {name} is missing"):
        engine(target, folder)


def test_a_missing_tensor_of_the_layer_is_named(tiny, tmp_path):
    target = tiny()
    write_head(tmp_path / "head", target.folder, "feature", taps=(0,))
    changed(tmp_path / "head", layer__self_attn__k_proj__weight=None)
    with pytest.raises(UsageError, match=r"tensor layer\.self_attn\.k_proj\.weight is missing"):
        engine(target.folder, tmp_path / "head")


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (
            {"fuse__weight": torch.zeros(64, 32)},
            r"fuse\.weight is \(64, 32\), its manifest and the target say \(64, 64\)",
        ),
        ({"head__weight": torch.zeros(3, 64)}, r"head\.weight is \(3, 64\)"),
        ({"norm__weight": torch.zeros(64, dtype=torch.int32)}, r"norm\.weight has type I32"),
        ({"ids": torch.arange(150, dtype=torch.float32)}, "ids has type F32"),
        ({"ids": torch.arange(149, -1, -1)}, "not ascending"),
        ({"ids": torch.arange(200, 350)}, "not ascending tokens of a vocabulary of 300"),
        ({"lora__weight": torch.zeros(2, 2)}, r"lora\.weight is not part of a"),
    ],
)
def test_tensors_that_do_not_fit_are_named(head, tensors, why):
    target, folder = head
    changed(folder, **tensors)
    with pytest.raises(UsageError, match=why):
        engine(target, folder)


def test_a_file_that_was_cut_short_is_refused(head):
    target, folder = head
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    for use in (lambda: engine(target, folder), lambda: inspect(folder)):
        with pytest.raises(UsageError, match="damaged or was cut short"):
            use()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": 99}, "schema 99, this netgain reads up to 1"),
        ({"kind": "oracle"}, "is no manifest of a draft"),
        ({"taps": [5]}, r"layers \[5\], which must be ascending and within 0 to 1"),
        ({"tokenizer": "0" * 32}, "tokenizer digest is 000000000000"),
        ({"target": "0" * 32}, "weights digest is 000000000000"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(head, changes, why):
    target, folder = head
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UsageError, match=why):
        engine(target, folder)


def test_inspect_tells_sizes(head):
    _, folder = head
    facts = inspect(folder)
    kind = facts.manifest.kind
    assert facts.tokens_it_can_say == 150
    assert facts.token_bytes == 64 * 2 + (2 * 2 * 16 * 2 if kind == "feature" else 0)
    assert facts.file_bytes == (folder / WEIGHTS).stat().st_size
    assert facts.finished


def test_inspect_of_what_is_no_draft_says_how_one_is_made(tmp_path):
    with pytest.raises(UsageError, match=r"holds no draft .*netgain draft train makes one"):
        inspect(tmp_path)

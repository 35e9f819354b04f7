"""Checkpoints that are incomplete, doubled or ambiguous: loaded as they mean it, or refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.digest import files_digest
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model, weight_source
from netgain.serving.model.weights import expected_shapes, matrix_bytes, stored_types

TOKENS = [1, 5, 256, 40, 257, 9]


def split(folder: Path, shards: int = 3) -> list[str]:
    """Rewrite a folder's weights as shards with an index; returns the shard names."""
    tensors = load_file(folder / "model.safetensors")
    names = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    place = {name: names[at % shards] for at, name in enumerate(sorted(tensors))}
    for shard in names:
        save_file({name: tensors[name] for name, where in place.items() if where == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    (folder / "model.safetensors").unlink()
    return names


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path) -> Any:
    return load_model(folder, "auto", load_kernels("torch"))


def test_shards_give_the_same_model_and_stray_files_are_ignored(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor]
) -> None:
    model = tiny()
    whole = run(load(model.folder), TOKENS)
    stray = {name: value + 1 for name, value in load_file(model.folder / "model.safetensors").items()}
    split(model.folder)
    save_file(stray, model.folder / "old.safetensors")
    assert torch.equal(run(load(model.folder), TOKENS), whole)


def test_a_missing_shard_is_named(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    names = split(folder)
    (folder / names[1]).unlink()
    with pytest.raises(UsageError, match=f"shard {names[1]} is missing"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, -8])
def test_a_shard_cut_short_is_named(tiny: Callable[..., Any], keep: int) -> None:
    folder = tiny().folder
    shard = folder / split(folder)[2]
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(UsageError, match=rf"{shard.name} is damaged or was cut short"):
        load(folder)


def test_a_tensor_that_its_shard_lacks_is_named(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    split(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = index["weight_map"]["model.embed_tokens.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"lacks tensor model\.norm\.weight"):
        load(folder)


@pytest.mark.parametrize("place", ["../other.safetensors", "/etc/passwd", 7, "weights.bin"])
def test_an_index_may_only_name_files_beside_it(tiny: Callable[..., Any], place: Any) -> None:
    folder = tiny().folder
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": place}}))
    with pytest.raises(UsageError, match="beside it"):
        load(folder)


def test_a_tied_head_is_the_embedding(tiny: Callable[..., Any], run: Callable[..., torch.Tensor]) -> None:
    model = tiny(tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(model.folder / "model.safetensors")
    loaded = load(model.folder)
    assert loaded.notes == ()
    assert torch.allclose(run(loaded, TOKENS), model.reference(torch.tensor([TOKENS])).logits[0], atol=1e-4)


def test_a_tied_model_that_ships_another_head_still_uses_the_embedding(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor]
) -> None:
    model = tiny(tie_word_embeddings=True)
    expected = run(load(model.folder), TOKENS)
    edit(model.folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(300, 64)}))
    loaded = load(model.folder)
    assert torch.equal(run(loaded, TOKENS), expected)
    assert loaded.notes == ("lm_head.weight is ignored: the configuration ties the head to the embedding",)


def test_an_untied_model_without_a_head_is_refused(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UsageError, match=r"tensor lm_head\.weight is missing"):
        load(folder)


def test_a_gguf_with_a_head_of_its_own_uses_it(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    model = tiny()
    loaded = load(write_gguf(model.reference))
    assert not loaded.config.tied
    assert torch.equal(run(loaded, TOKENS), run(load(model.folder), TOKENS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}), r"q_proj\.bias is not used"),
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), r"layers\.1\.mlp\.up_proj\.weight is missing"),
        (lambda t: t.update({"model.norm.weight": torch.ones(63)}), r"model\.norm\.weight is \(63,\).*\(64,\)"),
        (lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}), r"norm\.weight has type I8"),
    ],
)
def test_what_the_architecture_does_not_have_is_refused_by_tensor(
    tiny: Callable[..., Any], change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    folder = tiny().folder
    edit(folder, change)
    with pytest.raises(UsageError, match=message):
        load(folder)


def test_a_derived_table_of_old_checkpoints_is_ignored(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert load(folder).notes == ()


def test_a_folder_without_weights_says_what_it_lacks(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        load(folder)


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_stored_blocks_are_the_same_rows_as_the_dense_form(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], kind: str
) -> None:
    kernels = load_kernels("torch")
    source = weight_source(open_checkpoint(write_gguf(tiny().reference, kind)))
    for name, shape in expected_shapes(open_checkpoint(source.files[0]).config).items():
        blocks = source.blocks(name)
        if kind == "F32" or len(shape) == 1:
            assert blocks is None
            continue
        assert blocks is not None
        assert (blocks.kind, blocks.shape) == (kind, shape)
        packed = (kernels.pack_q4_1 if kind == "Q4_1" else kernels.pack_q8_0)(blocks.data, blocks.shape)
        assert torch.equal(kernels.embed(torch.arange(shape[0]), packed), source.dense(name))


def test_bytes_per_compute_type(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    model = tiny(tie_word_embeddings=True)
    checkpoint = open_checkpoint(write_gguf(model.reference, "Q8_0"))
    source, config = weight_source(checkpoint), checkpoint.config
    norms = (2 * config.layers + 1) * config.hidden
    matrices = config.parameters - norms
    assert sum(value.numel() for value in model.reference.parameters()) == config.parameters
    assert matrix_bytes(source, config, "fp32") == 4 * config.parameters
    assert matrix_bytes(source, config, "bf16") == 2 * matrices + 4 * norms
    assert matrix_bytes(source, config, "auto") == matrices // 32 * 34 + 4 * norms
    assert stored_types(source) == {"Q8_0": 15, "F32": 5}


def test_digest_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    first, second = tmp_path / "a.bin", tmp_path / "b.bin"
    first.write_bytes(b"x" * 100_000)
    second.write_bytes(b"x" * 100_000)
    once = files_digest([first])
    assert files_digest([first]) == files_digest([second]) == once
    assert len(once) == 32
    second.write_bytes(b"x" * 99_999 + b"y")
    assert files_digest([second]) != once
    assert files_digest([first, second]) != files_digest([second, first])

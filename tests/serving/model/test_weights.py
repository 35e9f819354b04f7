"""Checkpoints that are incomplete, doubled or ambiguous: loaded as they mean it, or refused by name."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.digest import files_digest
from netgain.serving.model.huggingface_config import config_from_huggingface
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model, reading_notes, weight_source
from netgain.serving.model.quantise import q8_0
from netgain.serving.model.weights import computed_type, expected_shapes, matrix_bytes, stored_types
from tests.serving.model.conftest import byte_tokenizer

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
    """sgl-project/sglang#32279, sgl-project/sglang#35107."""
    model = tiny()
    whole = run(load(model.folder), TOKENS)
    stray = {name: value + 1 for name, value in load_file(model.folder / "model.safetensors").items()}
    split(model.folder)
    save_file(stray, model.folder / "old.safetensors")
    assert torch.equal(run(load(model.folder), TOKENS), whole)


def test_a_missing_shard_is_named(tiny: Callable[..., Any]) -> None:
    """sgl-project/sglang#32279, sgl-project/sglang#35107."""
    folder = tiny().folder
    names = split(folder)
    (folder / names[1]).unlink()
    with pytest.raises(UsageError, match=f"shard {names[1]} is missing"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, -8])
def test_a_shard_cut_short_is_named(tiny: Callable[..., Any], keep: int) -> None:
    """sgl-project/sglang#32279, sgl-project/sglang#35107."""
    folder = tiny().folder
    shard = folder / split(folder)[2]
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(UsageError, match=rf"{shard.name} is damaged or was cut short"):
        load(folder)


@pytest.mark.parametrize("part", [0, 1])
def test_one_part_of_a_gguf_is_not_taken_for_the_model(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], part: int
) -> None:
    """sgl-project/sglang#32279."""
    with pytest.raises(UsageError, match="one of 3 parts of a model"):
        open_checkpoint(write_gguf(tiny().reference, extra={"split.no": part, "split.count": 3}))


def test_an_index_that_names_an_unknown_file_or_forgets_a_tensor_is_refused(tiny: Callable[..., Any]) -> None:
    """sgl-project/sglang#32279, sgl-project/sglang#35107."""
    for change, message in (
        (lambda places: places.update({"model.norm.weight": "model-00009-of-00003.safetensors"}), "model-00009"),
        (lambda places: places.pop("model.norm.weight"), r"tensor model\.norm\.weight is missing"),
    ):
        folder = tiny().folder
        split(folder)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        change(index["weight_map"])
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UsageError, match=message):
            load(folder)


def test_a_tensor_that_its_shard_lacks_is_named(tiny: Callable[..., Any]) -> None:
    """sgl-project/sglang#32279, sgl-project/sglang#35107."""
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
    """sgl-project/sglang#1508, vllm-project/vllm#6758, QwenLM/Qwen3-VL-Embedding#89."""
    model = tiny(tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(model.folder / "model.safetensors")
    loaded = load(model.folder)
    assert loaded.notes == ()
    assert torch.allclose(run(loaded, TOKENS), model.reference(torch.tensor([TOKENS])).logits[0], atol=1e-4)


def test_a_tied_model_that_ships_another_head_still_uses_the_embedding(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor]
) -> None:
    """sgl-project/sglang#1508, vllm-project/vllm#6758, QwenLM/Qwen3-VL-Embedding#89."""
    model = tiny(tie_word_embeddings=True)
    expected = run(load(model.folder), TOKENS)
    edit(model.folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(300, 64)}))
    loaded = load(model.folder)
    assert torch.equal(run(loaded, TOKENS), expected)
    assert loaded.notes == ("lm_head.weight is ignored: the configuration ties the head to the embedding",)


def test_an_untied_model_without_a_head_is_refused(tiny: Callable[..., Any]) -> None:
    """sgl-project/sglang#1508, vllm-project/vllm#6758, QwenLM/Qwen3-VL-Embedding#89."""
    folder = tiny().folder
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(UsageError, match=r"tensor lm_head\.weight is missing"):
        load(folder)


def test_a_gguf_with_a_head_of_its_own_uses_it(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    """sgl-project/sglang#1508, vllm-project/vllm#6758, QwenLM/Qwen3-VL-Embedding#89."""
    model = tiny()
    loaded = load(write_gguf(model.reference))
    assert not loaded.config.tied
    assert torch.equal(run(loaded, TOKENS), run(load(model.folder), TOKENS))


def test_a_gguf_without_a_head_is_tied_whatever_it_was_before(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    """sgl-project/sglang#1508: the format says that a head is tied by leaving it out, and in no other way."""
    model = tiny(tie_word_embeddings=True)
    loaded = load(write_gguf(model.reference))
    assert loaded.config.tied
    assert torch.equal(run(loaded, TOKENS), run(load(model.folder), TOKENS))
    other = load(write_gguf(model.reference, tensors={"output.weight": torch.ones(300, 64)}))
    assert not other.config.tied
    assert len(set(run(other, TOKENS)[0].tolist())) == 1


def test_a_gguf_tensor_under_another_formats_name_is_not_taken_for_it(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf(tiny(tie_word_embeddings=True).reference, tensors={"model.norm.weight": torch.ones(64)})
    with pytest.raises(UsageError, match=r"model\.norm\.weight \(not a GGUF name\) is not used"):
        load(path)


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


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_stored_blocks_are_the_same_rows_as_the_dense_form(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], kind: str
) -> None:
    kernels = load_kernels("torch")
    source = weight_source(open_checkpoint(write_gguf(tiny().reference, kind)))
    for name, shape in expected_shapes(open_checkpoint(source.files[0]).config).items():
        if len(shape) == 1:
            continue
        kept = computed_type(source, name, "auto")
        blocks = source.blocks(name, kept, q8_0)
        assert (source.kind(name), blocks.kind, blocks.shape) == (kind, kept, shape)
        pack = {"Q4_0": kernels.pack_q4_0, "Q4_1": kernels.pack_q4_1, "Q8_0": kernels.pack_q8_0}[kind]
        packed = pack(blocks.data, blocks.shape)
        assert torch.equal(kernels.embed(torch.arange(shape[0]), packed), source.dense(name))


KEPT = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q8_0": "Q8_0"}


@pytest.mark.parametrize("kind", [*KEPT, "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_every_gguf_type_is_served_as_stored_or_in_bfloat16_with_a_note(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor], kind: str
) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "initializer_range": 0.05}
    path = write_gguf(tiny(**shape).reference, kind)
    loaded, exact = load(path), load_model(path, "fp32", load_kernels("torch"))
    assert loaded.computed == (KEPT.get(kind, "BF16"),)
    assert exact.computed == ("F32",)
    if kind in KEPT:
        assert loaded.notes == ()
    else:
        (note,) = loaded.notes
        assert note.startswith(
            f"{kind} matrices are dequantised and kept in bfloat16, which rounds them; the weights take"
        )
        taken, exact_mb = (f"{built.model.weight_bytes / 1e6:,.1f} MB" for built in (loaded, exact))
        assert f"take {taken}; --set engine.model.dtype=fp32 keeps every digit in {exact_mb}" in note
        checkpoint = open_checkpoint(path)
        assert reading_notes(checkpoint, weight_source(checkpoint), "auto") == loaded.notes
    expected = run(exact, TOKENS)
    assert float((run(loaded, TOKENS) - expected).norm()) < 0.03 * float(expected.norm())


def test_mixed_types_in_one_file_are_kept_apart(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    """Files called Q4_K_M hold Q6_K values beside Q4_K queries; the default model a Q8_0 embedding beside Q4_1."""
    reference = tiny(initializer_range=0.05).reference
    mixed = write_gguf(reference, "Q4_0", other={"attn_v": "F16", "ffn_up": "Q8_0", "token_embd": "Q5_1"})
    loaded = load(mixed)
    assert loaded.computed == ("BF16", "F16", "Q4_0", "Q8_0")
    expected = run(load_model(mixed, "fp32", load_kernels("torch")), TOKENS)
    assert float((run(loaded, TOKENS) - expected).norm()) < 0.03 * float(expected.norm())


def test_bytes_per_compute_type(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    model = tiny(tie_word_embeddings=True)
    checkpoint = open_checkpoint(write_gguf(model.reference, "Q8_0"))
    source, config = weight_source(checkpoint), checkpoint.config
    norms = (2 * config.layers + 1) * config.hidden
    matrices = config.parameters - norms
    assert sum(value.numel() for value in model.reference.parameters()) == config.parameters
    assert matrix_bytes(source, config, "fp32") == 4 * config.parameters
    assert matrix_bytes(source, config, "fp16") == 2 * matrices + 4 * norms
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


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, 3000) | st.none(), changes=st.dictionaries(st.integers(0, 2200), st.integers(0, 255), max_size=5)
)
def test_a_safetensors_file_of_any_content_is_loaded_or_refused_by_name(
    tmp_path: Path, cut: int | None, changes: dict[int, int]
) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        write_smallest(folder)
        (tmp_path / "whole").write_bytes((folder / "model.safetensors").read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    for at, value in changes.items():
        content[at % len(content)] = value
    (folder / "model.safetensors").write_bytes(content[:cut])
    try:
        load(folder)
    except UsageError as refusal:
        said = str(refusal)
    else:
        said = ""
    assert not said or "model.safetensors" in said


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 40, (1 << 64) - 1])
def test_an_absurd_header_size_is_refused(tmp_path: Path, size: int) -> None:
    write_smallest(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(size.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(UsageError, match=r"model\.safetensors is damaged or was cut short"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "claim",
    [
        {"vocab_size": 1 << 24},
        {"hidden_size": 1 << 20, "head_dim": 2},
        {"num_hidden_layers": 1024},
        {"intermediate_size": 1 << 22},
    ],
    ids=str,
)
def test_a_claim_beyond_what_the_file_holds_is_refused_before_memory_is_taken(
    tmp_path: Path, claim: dict[str, int]
) -> None:
    write_smallest(tmp_path / "model", **claim)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"model\.safetensors: "):
            load(tmp_path / "model")
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def write_smallest(folder: Path, **changes: Any) -> None:
    """A one-layer model of a few kilobytes."""
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 4,
        "intermediate_size": 4,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 259,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    shapes = expected_shapes(config_from_huggingface(folder))
    save_file({name: torch.ones(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | changes))

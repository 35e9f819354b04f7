"""A converted folder is the same model, for this engine and for transformers, and never half written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model

TOKENS = [1, 5, 256, 40, 257, 9]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_transformers_loads_what_was_converted(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Path],
    run: Callable[..., torch.Tensor],
    tmp_path: Path,
    kind: str,
    tied: bool,
) -> None:
    source = write_gguf(tiny(tie_word_embeddings=tied, rope_theta=5e4).reference, kind)
    convert(open_checkpoint(source), tmp_path / "out" / "model", "fp32")
    reference, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out" / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    kernels = load_kernels("torch")
    got = run(load_model(source, "fp32", kernels), TOKENS)
    assert float((got - expected).abs().max()) < 1e-4 * float(expected.max() - expected.min())
    assert torch.equal(run(load_model(tmp_path / "out" / "model", "auto", kernels), TOKENS), got)


def test_a_converted_folder_describes_the_same_model(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    source = open_checkpoint(write_gguf(tiny().reference))
    convert(source, tmp_path / "model", "bf16")
    copy = open_checkpoint(tmp_path / "model")
    assert (copy.config, copy.eos) == (source.config, source.eos)
    assert copy.tokenizer.digest == source.tokenizer.digest
    assert copy.template is not None
    assert source.template is not None
    assert copy.template.source == source.template.source
    loaded = load_model(tmp_path / "model", "auto", load_kernels("torch"))
    assert loaded.model.weight_bytes < load_model(source.path, "fp32", load_kernels("torch")).model.weight_bytes


def test_a_model_of_some_layers_has_their_weights(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    source = tiny(num_hidden_layers=4)
    convert(open_checkpoint(source.folder), tmp_path / "model", "fp32", [0, 3])
    reference = source.reference
    reference.model.layers = torch.nn.ModuleList([reference.model.layers[0], reference.model.layers[3]])
    for number, layer in enumerate(reference.model.layers):
        layer.self_attn.layer_idx = number
    reference.config.num_hidden_layers = 2
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    got = run(load_model(tmp_path / "model", "fp32", load_kernels("torch")), TOKENS)
    assert float((got - expected).abs().max()) < 1e-4 * float(expected.max() - expected.min())


def test_folders_are_converted_too(tiny: Callable[..., Any], tmp_path: Path) -> None:
    folder = tiny().folder
    convert(open_checkpoint(folder), tmp_path / "copy", "fp32")
    assert open_checkpoint(tmp_path / "copy").config == open_checkpoint(folder).config


def test_what_is_there_is_not_overwritten(tiny: Callable[..., Any], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny().folder)
    target = tmp_path / "there"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        convert(checkpoint, target, "fp32")
    with pytest.raises(UsageError, match="exists already"):
        convert(checkpoint, target / "notes.txt", "fp32")
    with pytest.raises(UsageError, match="cannot write"):
        convert(checkpoint, target / "notes.txt" / "below", "fp32")
    assert [entry.name for entry in target.iterdir()] == ["notes.txt"]


def test_a_type_that_cannot_be_written_is_named(tiny: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'int4'.*fp32, bf16"):
        convert(open_checkpoint(tiny().folder), tmp_path / "out", "int4")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stored", "written", "rounded"),
    [("F32", "bf16", ("F32",)), ("F32", "fp32", ()), ("Q8_0", "bf16", ("F32", "Q8_0")), ("F16", "fp16", ("F32",))],
)
def test_what_was_rounded_is_said(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Path],
    tmp_path: Path,
    stored: str,
    written: str,
    rounded: tuple[str, ...],
) -> None:
    """Norms are F32 in GGUF files of any type."""
    source = open_checkpoint(write_gguf(tiny().reference, stored))
    assert convert(source, tmp_path / "model", written) == rounded


def test_a_folder_in_the_type_that_is_written_is_not_rounded(tiny: Callable[..., Any], tmp_path: Path) -> None:
    folder = tiny(dtype=torch.bfloat16).folder
    assert convert(open_checkpoint(folder), tmp_path / "same", "bf16") == ()
    assert convert(open_checkpoint(folder), tmp_path / "narrower", "fp16") == ("BF16",)

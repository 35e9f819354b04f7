"""MiMo's MTP module against its formulas written out in torch, from a checkpoint that carries it."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from netgain.errors import UsageError
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.drafts.feature_head import one_layer
from netgain.serving.model.drafts.mtp import LAST_LAYER, MtpModule, module_shapes
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.model.safetensors_source import SafetensorsSource
from tests.serving.runtime.mtp_checkpoint import add_mtp, reference

TEXT = [1, 5, 256, 40, 257, 9, 77, 40, 5, 1, 2]


@pytest.mark.parametrize("name", ["torch", "auto"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_module_computes_its_formulas(tiny, name, tied):
    model = tiny(family="qwen2", tie_word_embeddings=tied)
    add_mtp(model.folder)
    kernels = load_kernels(name, 1)
    loaded = load_model(model.folder, "fp32", kernels, taps=LAST_LAYER)
    assert loaded.config.mtp == 1
    module = MtpModule(loaded.model, SafetensorsSource(model.folder), kernels, "fp32")
    tokens, positions = torch.tensor(TEXT), torch.arange(len(TEXT))
    plan = kernels.plan(positions, torch.zeros_like(positions), torch.tensor([[1, 0, 2]], dtype=torch.int32), 4)
    tapped = torch.empty(len(TEXT), loaded.model.tap_width)
    loaded.model.forward(tokens, positions, plan, PagedKV(loaded.config, 3, 4, torch.float32), positions, None, tapped)
    with torch.inference_mode():
        hidden = model.reference.model(tokens[None]).last_hidden_state[0]
    assert float((module.fuse(tapped) - hidden).abs().max()) < 1e-4 * float(hidden.abs().max())
    pairs = positions[:-1]
    plan = kernels.plan(pairs, torch.zeros_like(pairs), torch.tensor([[1, 0, 2]], dtype=torch.int32), 4)
    kv = PagedKV(replace(one_layer(loaded.config), mtp=0), 3, 4, torch.float32)
    embedded = loaded.model.embed(tokens[1:])
    logits, normed = module.forward(embedded, hidden[:-1], pairs, plan, kv, pairs)
    expected = reference(load_file(model.folder / "model.safetensors"), loaded.config, hidden[:-1], embedded)
    assert float((normed - expected).abs().max()) < 1e-4 * float(expected.abs().max())
    with torch.inference_mode():
        said = model.reference.lm_head(expected)
    assert float((logits - said).abs().max()) < 1e-4 * float(said.abs().max())


def test_the_modules_change_nothing_of_the_model(tiny, run):
    model = tiny(family="qwen2")
    kernels = load_kernels("auto", 1)
    before = run(load_model(model.folder, "fp32", kernels), TEXT)
    add_mtp(model.folder, modules=2)
    assert torch.equal(run(load_model(model.folder, "fp32", kernels), TEXT), before)


def test_converted_it_is_the_same_model_without_the_module(tiny, run, tmp_path):
    model = tiny(family="qwen2")
    add_mtp(model.folder)
    kernels = load_kernels("auto", 1)
    convert(open_checkpoint(model.folder), tmp_path / "plain", "fp32")
    plain = load_model(tmp_path / "plain", "fp32", kernels)
    assert (plain.config.architecture, plain.config.mtp) == ("qwen2", 0)
    assert torch.equal(run(plain, TEXT), run(load_model(model.folder, "fp32", kernels), TEXT))


def changed(folder, name, tensor) -> None:
    held = load_file(folder / "model.safetensors")
    held.pop(name, None)
    if tensor is not None:
        held[name] = tensor
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        ("input_proj.weight", None, r"tensor model\.mtp_layers\.0\.input_proj\.weight is missing"),
        ("input_proj.weight", torch.zeros(64, 64), r"input_proj\.weight is \(64, 64\)"),
        ("final_layernorm.weight", torch.zeros(64, dtype=torch.int32), "has type I32"),
        ("eh_proj.weight", torch.zeros(2, 2), r"eh_proj\.weight is not part of an MTP module"),
    ],
)
def test_a_module_that_is_not_whole_is_refused_by_name(tiny, name, tensor, why):
    folder = tiny(family="qwen2").folder
    add_mtp(folder)
    changed(folder, f"model.mtp_layers.0.{name}", tensor)
    kernels = load_kernels("auto", 1)
    loaded = load_model(folder, "fp32", kernels, taps=LAST_LAYER)
    with pytest.raises(UsageError, match=why):
        MtpModule(loaded.model, SafetensorsSource(folder), kernels, "fp32")


def test_shapes_are_those_that_are_written(tiny):
    folder = tiny(family="qwen2").folder
    add_mtp(folder)
    config = load_model(folder, "fp32", load_kernels("auto", 1)).config
    held = load_file(folder / "model.safetensors")
    written = {name: tuple(tensor.shape) for name, tensor in held.items() if name.startswith("model.mtp_layers.0.")}
    assert written == {f"model.mtp_layers.0.{name}": shape for name, shape in module_shapes(config).items()}
    assert json.loads((folder / "config.json").read_text())["num_nextn_predict_layers"] == 1

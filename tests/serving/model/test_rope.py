"""RoPE in every spelling: logits against transformers beyond the original length, from config.json and from GGUF."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.model.rope import Rope
from netgain.serving.model.rotary import RotaryTable, frequencies

TOKENS = [(5 * place * place + 11) % 299 for place in range(200)]
ORIGINAL = 32
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
LONGROPE = {
    "rope_type": "longrope",
    "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0],
    "short_factor": [1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "original_max_position_embeddings": ORIGINAL,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear, old key": {"type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, attention factor": YARN | {"attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn, mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1},
    "longrope": LONGROPE,
}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_kernels("auto", 2)


def expected_logits(folder: Path, tokens: list[int] = TOKENS) -> torch.Tensor:
    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0]


def respell(folder: Path, **changes: Any) -> None:
    """Rewrite fields of config.json; `...` takes one out."""
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def equal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((got - expected).abs().max()) < 1e-4 * float(expected.max() - expected.min())


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_scaled_logits_equal_those_of_transformers(
    tiny: Callable[..., Any],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    scaling: dict[str, Any],
    spelling: str,
) -> None:
    """onnxruntime/mobius#458, oobabooga/textgen#6111: a scaled RoPE was built without its type or factor."""
    folder = tiny(rope_theta=5e5).folder
    if spelling == "rope_scaling":
        respell(folder, rope_parameters=..., rope_scaling=scaling, rope_theta=5e5)
    else:
        respell(folder, rope_parameters=scaling | {"rope_theta": 5e5})
    loaded = load_model(folder, "auto", kernels)
    assert loaded.config.rope.kind != "default"
    assert equal(run(loaded, TOKENS), expected_logits(folder))


GGUF_SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": (
        {"rope_type": "linear", "factor": 4.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "linear, old key": ({"rope_type": "linear", "factor": 4.0}, {"rope.scale_linear": 4.0}),
    "linear, type and old key": (
        {"rope_type": "linear", "factor": 4.0},
        {"rope.scaling.type": "linear", "rope.scale_linear": 4.0},
    ),
    "yarn": (
        YARN,
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": ORIGINAL,
        },
    ),
    "yarn with all keys": (
        YARN | {"attention_factor": 0.8 * (1 + 0.1 * math.log(4)), "beta_fast": 16.0, "beta_slow": 2.0},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": ORIGINAL,
            "rope.scaling.attn_factor": 0.8,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_beta_slow": 2.0,
            "rope.scaling.yarn_ext_factor": 1.0,
        },
    ),
}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(("scaling", "keys"), GGUF_SCALINGS.values(), ids=GGUF_SCALINGS.keys())
def test_scaling_in_gguf_gives_the_logits_of_the_safetensors_original(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Path],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    family: str,
    scaling: dict[str, Any],
    keys: dict[str, Any],
) -> None:
    """onnxruntime/mobius#458, oobabooga/textgen#6111."""
    model = tiny(family=family, rope_theta=5e5)
    respell(model.folder, rope_parameters=scaling | {"rope_theta": 5e5})
    path = write_gguf(model.reference, extra={f"{family}.{key}": value for key, value in keys.items()})
    loaded, original = load_model(path, "auto", kernels), load_model(model.folder, "auto", kernels)
    assert loaded.config.context == original.config.context
    assert loaded.notes == original.notes
    got, expected = run(loaded, TOKENS), run(original, TOKENS)
    assert float((got - expected).abs().max()) < 1e-5 * float(expected.max() - expected.min())


def test_frequency_factors_in_gguf_are_llama3s(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Path],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    tmp_path: Path,
) -> None:
    """The converter writes llama3's scaling as a tensor; converting back keeps it."""
    model = tiny(rope_theta=5e5)
    respell(model.folder, rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    rope = open_checkpoint(model.folder).config.rope
    factors = frequencies(Rope(theta=5e5), 16) / frequencies(rope, 16)
    assert float(factors.max()) == 8
    path = write_gguf(model.reference, tensors={"rope_freqs.weight": factors})
    loaded = load_model(path, "auto", kernels)
    assert equal(run(loaded, TOKENS), expected_logits(model.folder))
    convert(open_checkpoint(path), tmp_path / "back", "fp32")
    assert equal(run(load_model(tmp_path / "back", "auto", kernels), TOKENS), expected_logits(model.folder))
    assert equal(expected_logits(tmp_path / "back"), expected_logits(model.folder))


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_a_converted_model_is_scaled_alike(tiny: Callable[..., Any], tmp_path: Path, scaling: dict[str, Any]) -> None:
    folder = tiny(rope_theta=5e5, num_hidden_layers=1).folder
    respell(folder, rope_parameters=scaling | {"rope_theta": 5e5})
    convert(open_checkpoint(folder), tmp_path / "copy", "fp32")
    assert open_checkpoint(tmp_path / "copy").config == open_checkpoint(folder).config
    assert equal(expected_logits(tmp_path / "copy"), expected_logits(folder))


@pytest.mark.parametrize("shape", [(7,), (8, 1)])
def test_frequency_factors_of_another_shape_are_refused(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], shape: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError, match=r"rope_freqs\.weight is .*expected \(8,\)"):
        open_checkpoint(write_gguf(tiny().reference, tensors={"rope_freqs.weight": torch.ones(shape)}))


def test_longrope_factors_in_gguf(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor], kernels: Kernels
) -> None:
    model = tiny(rope_theta=5e5)
    respell(model.folder, rope_parameters=LONGROPE | {"rope_theta": 5e5})
    attention = math.sqrt(1 + math.log(256 / ORIGINAL) / math.log(ORIGINAL))
    path = write_gguf(
        model.reference,
        extra={
            "llama.rope.scaling.type": "longrope",
            "llama.rope.scaling.original_context_length": ORIGINAL,
            "llama.rope.scaling.attn_factor": attention,
        },
        tensors={f"rope_factors_{n}.weight": torch.tensor(LONGROPE[f"{n}_factor"]) for n in ("long", "short")},
    )
    loaded = load_model(path, "auto", kernels)
    assert "long factors at every length" in loaded.notes[0]
    assert equal(run(loaded, TOKENS), expected_logits(model.folder))


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_a_missing_factor_is_noted(tiny: Callable[..., Any], kind: str) -> None:
    """onnxruntime/mobius#458: without a word, a model whose file lacks the factor runs unscaled."""
    folder = tiny().folder
    scaling = {key: value for key, value in SCALINGS[kind].items() if key not in ("factor",)}
    respell(folder, rope_scaling=scaling | {"original_max_position_embeddings": 256}, rope_parameters=...)
    config = open_checkpoint(folder).config
    assert config.rope.factor == 1
    assert config.notes == (f"RoPE scaling {kind!r} has no factor; taken as 1, so nothing is scaled",)


def test_a_missing_factor_follows_from_the_lengths_where_it_can(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    respell(folder, rope_scaling=scaling, rope_parameters=...)
    config = open_checkpoint(folder).config
    assert (config.rope.factor, config.context) == (4, 256)
    assert "4 follows from context and original context" in config.notes[0]


def test_missing_parts_in_gguf_are_noted(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    reference = tiny().reference
    untyped = open_checkpoint(write_gguf(reference, extra={"llama.rope.scaling.factor": 2.0})).config
    assert (untyped.rope.kind, untyped.rope.factor) == ("linear", 2)
    assert untyped.notes[0] == "RoPE has a factor (2) but no scaling type; taken as linear"
    bare = open_checkpoint(write_gguf(reference, extra={"llama.rope.scaling.type": "linear"})).config
    assert "no factor; taken as 1" in bare.notes[0]


def test_the_context_is_what_scaling_makes_of_it(tiny: Callable[..., Any]) -> None:
    for scaling, context in ((SCALINGS["linear"], 1024), (YARN | {"factor": 16.0}, 512), (YARN, 256), (LLAMA3, 256)):
        folder = tiny().folder
        respell(folder, rope_scaling=scaling, rope_parameters=...)
        config = open_checkpoint(folder).config
        assert config.context == context
        assert len(config.notes) == (context != 256)


def test_dynamic_scaling_is_plain_within_the_context_and_goes_no_further(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels
) -> None:
    folder = tiny().folder
    respell(folder, rope_scaling={"rope_type": "dynamic", "factor": 4.0}, rope_parameters=...)
    loaded = load_model(folder, "auto", kernels)
    assert loaded.config.context == 256
    assert "acts only beyond 256 tokens" in loaded.notes[0]
    tokens = (TOKENS * 2)[:256]
    assert equal(run(loaded, tokens), expected_logits(folder, tokens))


def test_a_table_grows_with_the_same_bits_however_it_is_asked() -> None:
    rope = Rope(theta=1e4)
    whole = RotaryTable(rope, 10, 5000, torch.device("cpu")).rows(torch.arange(5000))
    growing = RotaryTable(rope, 10, 5000, torch.device("cpu"))
    for place in (0, 3, 1030, 4999, 17):
        for table, part in zip(whole, growing.rows(torch.tensor([place])), strict=True):
            assert torch.equal(table[place : place + 1], part)
    with pytest.raises(ValueError, match="outside the context of 5000"):
        growing.rows(torch.tensor([6000]))


def test_a_claimed_context_costs_nothing(tiny: Callable[..., Any], kernels: Kernels) -> None:
    """A file may claim any length; tables for it would take 64 GiB."""
    folder = tiny().folder
    respell(folder, max_position_embeddings=1 << 30)
    assert load_model(folder, "auto", kernels).config.context == 1 << 30

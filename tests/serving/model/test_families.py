"""Every family's logits against transformers, from safetensors and from GGUF, and their bits however a prompt is cut."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from netgain.errors import Unavailable, UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama with biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "sliding_window": 20},
    "mistral without window": {"family": "mistral", "sliding_window": None, "tie_word_embeddings": True},
    "mistral, one position": {"family": "mistral", "sliding_window": 1},
    "qwen2": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen2 with a window in one layer": {
        "family": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 2,
    },
    "qwen3": {"family": "qwen3", "head_dim": 24, "num_attention_heads": 6},
    "qwen3 with biases and layer types": {
        "family": "qwen3",
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
}
TOKENS = [(7 * place * place + 3) % 299 for place in range(150)]


@pytest.fixture(params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return load_kernels(request.param, 2)
    except Unavailable as error:
        pytest.skip(str(error))


def equal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((got - expected).abs().max()) < 1e-4 * float(expected.max() - expected.min())


@pytest.mark.parametrize("shape", FAMILIES.values(), ids=FAMILIES.keys())
def test_logits_equal_those_of_transformers_and_keep_their_bits_in_chunks(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Any],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    shape: dict[str, Any],
) -> None:
    model = tiny(**shape)
    with torch.inference_mode():
        expected = model.reference(torch.tensor([TOKENS])).logits[0]
    loaded = load_model(model.folder, "auto", kernels)
    assert loaded.notes == ()
    got = run(loaded, TOKENS)
    assert equal(got, expected)
    assert torch.equal(run(loaded, TOKENS, (1, 130, 6, 1, 12)), got)
    window = {f"{shape['family']}.attention.sliding_window": 20}
    if shape["family"] == "mistral":
        window = {"llama.attention.sliding_window": shape["sliding_window"]}
    elif "sliding_window" not in shape or "max_window_layers" in shape or "layer_types" in shape:
        window = {}
    if shape.get("use_sliding_window"):
        return  # GGUF has no place for a window in some layers that its writer would use
    stored = load_model(write_gguf(model.reference, extra=window), "auto", kernels)
    assert torch.equal(run(stored, TOKENS), got)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_pattern_in_gguf_marks_the_layers_with_a_window(
    tiny: Callable[..., Any], write_gguf: Callable[..., Any], family: str
) -> None:
    path = write_gguf(
        tiny(family=family).reference,
        extra={
            f"{family}.attention.sliding_window": 20,
            f"{family}.attention.sliding_window_pattern": [False, True],
        },
    )
    assert open_checkpoint(path).config.windows == (None, 20)


@pytest.mark.parametrize(
    "shape", [FAMILIES[name] for name in ("llama with biases", "mistral", "qwen2", "qwen3 with biases and layer types")]
)
def test_a_converted_family_is_the_same_model_for_transformers(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], tmp_path: Any, shape: dict[str, Any]
) -> None:
    model = tiny(**shape)
    convert(open_checkpoint(model.folder), tmp_path / "copy", "fp32")
    with torch.inference_mode():
        expected = model.reference(torch.tensor([TOKENS])).logits[0]
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")(torch.tensor([TOKENS])).logits[0]
    assert torch.equal(again, expected)
    assert open_checkpoint(tmp_path / "copy").config == open_checkpoint(model.folder).config


def test_a_missing_bias_or_norm_is_named(tiny: Callable[..., Any], write_gguf: Callable[..., Any]) -> None:
    llama = tiny().reference
    for arch, name in (("qwen2", r"layers\.0\.self_attn\.q_proj\.bias"), ("qwen3", r"layers\.0\.self_attn\.q_norm")):
        extra = {f"{arch}.{key.partition('.')[2]}": value for key, value in _llama_keys(llama.config).items()}
        path = write_gguf(llama, extra=extra | {"general.architecture": arch})
        with pytest.raises(UsageError, match=name):
            load_model(path, "auto", load_kernels("torch"))


def _llama_keys(config: Any) -> dict[str, Any]:
    return {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }

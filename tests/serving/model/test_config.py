"""Shapes are read as written, and what is not supported is refused by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.config import ModelConfig, config_from_huggingface

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 256,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    values = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return config_from_huggingface(folder)


def test_missing_fields_take_the_familys_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.kv_heads, config.head_dim, config.rope_theta, config.rms_eps) == (4, 16, 10000.0, 1e-6)
    assert (config.tied, config.bos, config.eos) == (False, None, ())


def test_fields_are_read_and_not_derived(tmp_path: Path) -> None:
    config = read(
        tmp_path, num_hidden_layers=28, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128
    )
    assert 2 * config.kv_values_per_token == 114_688
    assert config.parameters == 28 * (2 * 1024 * 128 * 24 + 3 * 1024 * 96 + 2048) + 2 * 300 * 1024 + 1024


def test_end_tokens_are_gathered_from_both_files(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": [7, 9]}, eos_token_id=7).eos == (7, 9)


def test_both_spellings_of_rope_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, rope_theta=5e5).rope_theta == 5e5
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 7e4}).rope_theta == 7e4
    assert read(tmp_path, rope_scaling=None, rope_theta=1e5).rope_theta == 1e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba'.*supported: llama"),
        ({"model_type": ...}, "None is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "RoPE scaling 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "RoPE scaling 'llama3'"),
        ({"rope_scaling": {"factor": 4.0}}, "factor 4.0 without a type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 128}, "sliding_window = 128"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"vocab_size": 1 << 40}, "vocab is"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"num_attention_heads": 0}, "heads is 0"),
        ({"head_dim": 5}, "head size 5 is odd"),
        ({"rms_norm_eps": 0}, "rms_eps"),
        ({"eos_token_id": ["x"]}, "token ids"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00"])
def test_a_broken_config_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        config_from_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "RoPE scaling 'linear'"),
        ({"llama.rope.scaling.type": "spiral"}, "RoPE scaling 'spiral'"),
        ({"llama.rope.scale_linear": 4.0}, "rope.scale_linear 4"),
        ({"llama.rope.scaling.factor": 2.0}, "rope.scaling.factor 2"),
        ({"llama.rope.dimension_count": 8}, "partial rotary embeddings"),
        ({"llama.expert_count": 8}, "expert_count 8"),
        ({"general.architecture": "qwen2"}, "'qwen2'.*supported: llama"),
        ({"llama.block_count": None}, "block_count is missing"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "pre-tokenizer 'unheard-of'"),
        ({"tokenizer.ggml.model": "rwkv"}, "GGUF tokenizer 'rwkv'"),
    ],
    ids=str,
)
def test_gguf_of_another_kind_is_refused_by_name(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_checkpoint(write_gguf(tiny().reference, extra=extra))


def test_gguf_says_the_same_as_the_folder(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    model = tiny(rope_theta=5e5, rms_norm_eps=1e-5)
    path = write_gguf(model.reference, extra={"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0})
    assert open_checkpoint(path).config == open_checkpoint(model.folder).config


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")])
def test_numbers_that_no_model_has_are_named(tmp_path: Path, value: float) -> None:
    with pytest.raises(UsageError, match="rope_theta"):
        read(tmp_path, rope_theta=value)


def test_json_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="not valid JSON"):
        config_from_huggingface(tmp_path)

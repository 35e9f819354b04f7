"""Shapes are read as written, and what is not supported is refused by its name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.serving.blocks.layout import KVLayout
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.huggingface_config import config_from_huggingface

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
    assert (config.kv_heads, config.head_dim, config.rope.theta, config.rms_eps) == (4, 16, 10000.0, 1e-6)
    assert (config.tied, config.bos, config.eos) == (False, None, ())


WIDE: dict[str, Any] = {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16}


@pytest.mark.parametrize(
    ("changes", "kv_bytes"),
    [
        ({"num_key_value_heads": 8, "head_dim": 128}, 114_688),
        ({"num_key_value_heads": 8}, 57_344),
        ({"num_key_value_heads": 1, "head_dim": 128}, 14_336),
        ({"num_key_value_heads": 8, "model_type": "qwen3"}, 114_688),  # the class says 128 where the file says nothing
        ({"num_key_value_heads": 8, "head_dim": None}, 57_344),
    ],
    ids=str,
)
def test_kv_sizes_come_from_fields_that_are_read(tmp_path: Path, changes: dict[str, Any], kv_bytes: int) -> None:
    """LMCache/LMCache#688, NVIDIA/Model-Optimizer#2482, vllm-project/vllm#29736: KV sized from hidden size over heads."""
    config = read(tmp_path, **WIDE, **changes)
    assert 2 * config.kv_values_per_token == kv_bytes
    assert (
        KVLayout(
            layers=config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, value_bytes=2, block_tokens=16
        ).token_bytes
        == kv_bytes
    )


def test_parameters_are_counted(tmp_path: Path) -> None:
    config = read(tmp_path, **WIDE, num_key_value_heads=8, head_dim=128)
    assert config.parameters == 28 * (2 * 1024 * 128 * 24 + 3 * 1024 * 96 + 2048) + 2 * 300 * 1024 + 1024


def test_every_familys_parameters_are_those_of_transformers(tiny: Callable[..., Any]) -> None:
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        model = tiny(family=family)
        assert open_checkpoint(model.folder).config.parameters == sum(p.numel() for p in model.reference.parameters())


QWEN: dict[str, Any] = {"model_type": "qwen2", "num_key_value_heads": 2, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 40}, (40, 40, 40)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None, None)),
        ({"model_type": "mistral", "max_position_embeddings": 8192}, (4096, 4096, 4096)),  # the class says 4096
        ({"model_type": "mistral", "sliding_window": 4096}, (None, None, None)),  # longer than the context
        ({"model_type": "mistral", "sliding_window": 40, "layer_types": ["sliding_attention"] * 3}, (40, 40, 40)),
        ({"sliding_window": 40, "max_window_layers": 0}, (None, None, None)),  # use_sliding_window is missing
        ({"sliding_window": 40, "max_window_layers": 0, "use_sliding_window": False}, (None, None, None)),
        ({"sliding_window": 40, "max_window_layers": 2, "use_sliding_window": True}, (None, None, 40)),
        ({"sliding_window": 40, "use_sliding_window": True}, (None, None, None)),  # the class says 28 layers without
        (
            {
                "sliding_window": 40,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            (None, 40, None),
        ),
    ],
    ids=str,
)
def test_windows_per_layer(tmp_path: Path, changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read(tmp_path, **(QWEN | changes)).windows == windows


def test_end_tokens_are_gathered_from_both_files(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": [7, 9]}, eos_token_id=7).eos == (7, 9)


def test_both_spellings_of_rope_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, rope_theta=5e5).rope.theta == 5e5
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 7e4}).rope.theta == 7e4
    assert read(tmp_path, rope_scaling=None, rope_theta=1e5).rope.theta == 1e5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba'.*supported: llama"),
        ({"model_type": ...}, "None is not supported"),
        (
            {"rope_scaling": {"rope_type": "spiral", "factor": 4.0}},
            "'spiral' is not supported; supported: default, linear",
        ),
        ({"rope_scaling": {"type": "mrope", "factor": 4.0}}, "RoPE scaling 'mrope'"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, "alpha = 1000.0"),
        ({"rope_scaling": ["linear", 4.0]}, "rope_scaling is .*expected an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, "factor is '4'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -4.0}}, "factor -4 is not above 0"),
        ({"rope_scaling": {"rope_type": 7}}, "rope_type is 7"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}, "list of 8 numbers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": -1}}, "beta_fast is -1"),
        ({"rope_scaling": {"factor": 4.0}}, "factor 4.0 without a type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes', expected true or false"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
        ({"model_type": ["llama"]}, "supported: llama"),
        (QWEN | {"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0"),
        (QWEN | {"layer_types": ["full_attention"]}, "layer_types is .*a list of 3"),
        (QWEN | {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "'linear_attention'"),
        (QWEN | {"layer_types": ["sliding_attention"] * 3}, "no sliding_window is used"),
        (
            {"model_type": "mistral", "num_key_value_heads": 2, "layer_types": ["full_attention"] * 2},
            "makes every layer",
        ),
        ({"model_type": "qwen2"}, "num_key_value_heads is missing"),
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
        ({"rope_theta": 0}, "RoPE theta is 0"),
        ({"num_hidden_layers": 10**9}, "layers is 1000000000"),
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
        ({"llama.rope.scaling.type": "spiral"}, "RoPE scaling 'spiral' is not supported; supported: none, linear"),
        ({"llama.rope.scaling.type": "longrope"}, "needs tensors rope_factors_long"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor = 0.5"),
        ({"llama.attention.sliding_window_pattern": 4}, "sliding_window_pattern is 4"),
        ({"llama.attention.scale": 0.5}, "attention.scale = 0.5"),
        ({"llama.rope.dimension_count": 8}, "partial rotary embeddings"),
        ({"llama.expert_count": 8}, "expert_count = 8"),
        ({"general.architecture": "mamba"}, "'mamba'.*supported: llama, qwen2, qwen3"),
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


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "factor", "x"]), inner),
    max_leaves=4,
)
FIELDS = [
    *LLAMA,
    "num_key_value_heads",
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "bos_token_id",
    "eos_token_id",
]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    changes=st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=3),
)
def test_a_field_of_any_type_is_read_or_refused_by_file(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    try:
        config = read(tmp_path, **({"model_type": family, "num_key_value_heads": 2} | changes))
    except UsageError as error:
        refusal, config = str(error), None
    assert len(config.windows) == config.layers if config else re.search(r"config\.json|model config", refusal)

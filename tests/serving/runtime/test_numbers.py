"""Numbers that are none: a model whose weights overflowed says so, once per request, and the engine goes on."""

import json
from pathlib import Path

import pytest

from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM


@pytest.mark.parametrize("kernels", ["torch", "compiled"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_layer_that_overflowed_float16_ends_requests_with_an_error(
    request, chain_model, tmp_path, kernels, temperature
):
    """vllm-project/vllm#12794, vllm-project/vllm#48231: overflow to NaN gave empty or endless text."""
    if kernels == "compiled":
        request.getfixturevalue("requires_compiler")
    folder = overflowed(chain_model.folder, tmp_path / "model")
    config = EngineConfig.model_validate(
        {"model": {"source": str(folder), "kernels": kernels, "threads": 1}, "cache": {"kv_tokens": 256}}
    )
    with LLM(config) as llm:
        assert llm.built.info["dtype"] == "f16"
        completions = llm.generate([[97, 98], [99]], SamplingParams(max_tokens=5, temperature=temperature))
        llm.built.engine.check()
    for completion in completions:
        assert completion.finish_reason == "error"
        assert "the model's logits" in completion.error
        assert "weights" in completion.error
        assert completion.output_ids == ()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_tiny_temperatures_say_the_greedy_text_in_every_number_type(chain_model, dtype):
    """vllm-project/vllm#2937, NVIDIA/TensorRT-LLM#15715: they overflowed in half precision."""
    model = {"source": str(chain_model.folder), "kernels": "torch", "threads": 1, "dtype": dtype}
    with LLM(EngineConfig.model_validate({"model": model, "cache": {"kv_tokens": 512}})) as llm:
        assert llm.built.info["dtype"] == dtype.replace("fp", "f")
        tiny = [
            SamplingParams(max_tokens=9, temperature=value, seed=3) for value in (0.0, 5e-324, 1e-12, 1e-5, 1e-4, 0.01)
        ]
        completions = llm.generate(["s"] * len(tiny), tiny)
    assert {completion.text for completion in completions} == {"short answer"}


def overflowed(folder: Path, target: Path) -> Path:
    """A copy stored in float16 after one layer was scaled beyond what float16 holds."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (target / name).write_text((folder / name).read_text())
    tensors = load_file(folder / "model.safetensors")
    for part in ("gate", "up", "down"):
        name = f"model.layers.0.mlp.{part}_proj.weight"
        tensors[name] = (tensors[name] + 1) * 1e5
    save_file({name: value.half() for name, value in tensors.items()}, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    return target

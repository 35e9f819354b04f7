"""Logits against transformers on tiny random models, through both kernels, from safetensors and from GGUF."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from netgain.errors import Unavailable, UsageError
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "every head its own": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1, "num_hidden_layers": 3},
    "three of nine": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "odd sizes": {"hidden_size": 60, "intermediate_size": 77, "vocab_size": 263, "head_dim": 10},
    "wide heads": {"head_dim": 32, "rope_theta": 1e6, "rms_norm_eps": 1e-6},
}
TOKENS = [7, 3, 250, 0, 19, 256, 44, 44, 2, 120, 99, 5, 31, 210, 257, 8, 77, 6, 61]


@pytest.fixture(params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return load_kernels(request.param, 2)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_fp32_logits_equal_those_of_transformers(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels, shape: dict[str, Any]
) -> None:
    model = tiny(**shape)
    with torch.inference_mode():
        expected = model.reference(torch.tensor([TOKENS])).logits[0]
    got = run(load_model(model.folder, "auto", kernels), TOKENS)
    assert got.dtype == torch.float32
    assert float((got - expected).abs().max()) < 1e-4 * float(expected.max() - expected.min())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_keep_their_numbers(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels, stored: torch.dtype
) -> None:
    """vllm-project/vllm#12794, huggingface/transformers#27769: half precision on a CPU was changed or refused silently."""
    model = tiny(dtype=stored)
    reference = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    kept = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "auto": "F16" if stored is torch.float16 else "BF16"}
    for dtype, kind in kept.items():
        loaded = load_model(model.folder, dtype, kernels)
        assert loaded.computed == (kind,)
        assert loaded.notes == ()
        got = run(loaded, TOKENS)
        exact = dtype in ("fp32", "auto") or (dtype, stored) == ("bf16", torch.bfloat16)  # nothing is rounded again
        tolerance = 1e-4 if exact else 3e-2
        assert float((got - expected).abs().max()) < tolerance * float(expected.max() - expected.min())


def test_gguf_gives_the_bits_of_its_safetensors_original(
    tiny: Callable[..., Any], write_gguf: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels
) -> None:
    model = tiny(tie_word_embeddings=True)
    original = run(load_model(model.folder, "fp32", kernels), TOKENS)
    assert torch.equal(run(load_model(write_gguf(model.reference), "fp32", kernels), TOKENS), original)


def test_a_number_beyond_float16_is_refused_at_load(tiny: Callable[..., Any]) -> None:
    model = tiny(dtype=torch.bfloat16)
    tensors = load_file(model.folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = 1e5
    save_file(tensors, model.folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"layers\.1\.mlp\.up_proj\.weight \(BF16\) holds 99840, beyond float16"):
        load_model(model.folder, "fp16", load_kernels("torch"))
    assert load_model(model.folder, "auto", load_kernels("torch")).computed == ("BF16",)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_used_as_stored_stay_close_to_dequantised_ones(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Any],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    kind: str,
) -> None:
    path = write_gguf(tiny(initializer_range=0.05).reference, kind)
    quantised, exact = load_model(path, "auto", kernels), load_model(path, "fp32", kernels)
    assert quantised.model.weight_bytes < exact.model.weight_bytes
    expected = run(exact, TOKENS)
    difference = run(quantised, TOKENS) - expected
    assert float(difference.norm()) < 0.03 * float(expected.norm())


def test_chunks_and_asked_rows_do_not_change_bits(
    tiny: Callable[..., Any], write_gguf: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels
) -> None:
    model = tiny()
    for source, dtype in (
        (model.folder, "fp32"),
        (model.folder, "bf16"),
        (model.folder, "fp16"),
        (write_gguf(model.reference, "Q4_1"), "auto"),
    ):
        loaded = load_model(source, dtype, kernels)
        whole = run(loaded, TOKENS, kv_dtype=torch.bfloat16)
        for chunks in ((1,) * len(TOKENS), (5, 1, 9, 4)):
            assert torch.equal(run(loaded, TOKENS, chunks, torch.bfloat16), whole)


def test_no_rows_asked_gives_no_logits_but_writes_kv(tiny: Callable[..., Any], kernels: Kernels) -> None:
    loaded = load_model(tiny().folder, "auto", kernels)
    kv = PagedKV(loaded.config, 1, 16, torch.float32)
    positions = torch.arange(3)
    plan = kernels.plan(positions, torch.zeros(3, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int32), 16)
    logits = loaded.model.forward(torch.tensor([1, 2, 3]), positions, plan, kv, torch.tensor([], dtype=torch.int64))
    assert logits.shape == (0, 300)
    assert bool(kv.values(1)[0, :, :3].any())
    assert not kv.values(1)[0, :, 3:].any()


def test_unknown_compute_type_is_refused(tiny: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"'fp8'.*auto, fp32, bf16, fp16"):
        load_model(tiny().folder, "fp8", load_kernels("torch"))

"""Matrices rounded to blocks at load: GGUF's own int8, an int4 that loses less than GGUF's, and what cannot be rounded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.gguf_types import dequantise
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model, weight_source
from netgain.serving.model.quantise import q4_1, q8_0, quantised
from netgain.serving.model.weights import EMBEDDING, HEAD, computed_types, matrix_bytes

TOKENS = [1, 5, 256, 40, 257, 9, 77, 140, 3, 3, 250]


def blocks(kind: str, values: torch.Tensor) -> np.ndarray[Any, Any]:
    encode = {"Q8_0": q8_0, "Q4_1": q4_1}[kind]
    return quantised(encode, tuple(values.shape), lambda start, stop: values[start:stop]).numpy()


def error(values: torch.Tensor, rows: np.ndarray[Any, Any], kind: str) -> float:
    return float(np.square(dequantise(rows, kind) - values.numpy()).sum())


def reference(values: torch.Tensor, kind: str) -> np.ndarray[Any, Any]:
    return np.asarray(gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType[kind]))


matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.sampled_from([32, 96])),
    elements=st.floats(-500, 500, width=32) | st.integers(-8, 8).map(lambda number: number / 2),
)


@settings(max_examples=40)
@given(matrices)
def test_int8_is_byte_for_byte_what_ggufs_tool_writes(values: np.ndarray[Any, Any]) -> None:
    values[np.abs(values) < 1e-3] = 0.0  # where the tool divides by a scale that it then stores as nothing
    assert np.array_equal(blocks("Q8_0", torch.from_numpy(values)), reference(torch.from_numpy(values), "Q8_0"))


@settings(max_examples=40)
@given(matrices)
def test_int4_stays_within_a_step_of_every_number(values: np.ndarray[Any, Any]) -> None:
    found = dequantise(blocks("Q4_1", torch.from_numpy(values)), "Q4_1").reshape(-1, 32)
    groups = values.reshape(-1, 32)
    step = np.ptp(groups, axis=1, keepdims=True) / 15
    assert (np.abs(found - groups) <= 1.6 * step + np.abs(groups).max(initial=0) * 2**-9).all()


@pytest.mark.parametrize("law", ["normal", "laplace", "uniform"])
def test_int4_loses_less_than_either_of_ggufs_four_bit_types(law: str) -> None:
    random = np.random.default_rng(4)
    values = torch.from_numpy(getattr(random, law)(size=(200, 320)).astype(np.float32))
    ours = error(values, blocks("Q4_1", values), "Q4_1")
    shares = {"normal": 0.82, "laplace": 0.86, "uniform": 0.97}
    for kind in ("Q4_0", "Q4_1"):
        assert ours < shares[law] * error(values, reference(values, kind), kind)


def test_numbers_that_lie_on_a_four_bit_grid_are_kept() -> None:
    values = torch.randn(40, 96, generator=torch.Generator().manual_seed(1))
    once = torch.tensor(dequantise(reference(values, "Q4_1"), "Q4_1"))
    assert np.array_equal(dequantise(blocks("Q4_1", once), "Q4_1"), once.numpy())


def test_pieces_and_threads_change_no_byte() -> None:
    values = torch.randn(1000, 320, generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    try:
        for kind in ("Q8_0", "Q4_1"):
            torch.set_num_threads(1)
            whole = blocks(kind, values)
            torch.set_num_threads(3)
            assert np.array_equal(blocks(kind, values), whole)
            assert np.array_equal(
                np.concatenate([blocks(kind, values[at : at + 7]) for at in range(0, 1000, 7)]), whole
            )
    finally:
        torch.set_num_threads(before)


def test_constant_and_tiny_groups_are_kept_as_well_as_float16_can() -> None:
    values = torch.cat([torch.full((1, 32), number) for number in (0.0, 0.75, -3e-5, 1e-42, -1e-33)])
    found = dequantise(blocks("Q4_1", values), "Q4_1")
    assert np.allclose(found, values, rtol=1e-3, atol=6e-8)
    assert np.array_equal(dequantise(blocks("Q8_0", values), "Q8_0")[3:], np.zeros((2, 32)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_what_blocks_cannot_keep_is_refused_by_name(tiny: Callable[..., Any], dtype: str, bad: float) -> None:
    folder = tiny().folder
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 40] = bad
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UsageError, match=r"layers\.1\.mlp\.up_proj\.weight \(F32\) holds"):
        load_model(folder, dtype, load_kernels("torch"))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_1", "Q6_K"])
def test_every_stored_type_is_served_in_int8_and_int4(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor], kind: str
) -> None:
    """Query and key rows of a llama's GGUF lie in pairs; they must be turned with their blocks."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "initializer_range": 0.05}
    path = write_gguf(tiny(**shape).reference, kind)
    expected = run(load_model(path, "fp32", load_kernels("torch")), TOKENS)
    for dtype, share in (("int8", 0.04), ("int4", 0.15)):
        loaded = load_model(path, dtype, load_kernels("torch"))
        kept = {"Q8_0"} if dtype == "int8" else {kind} if kind in ("Q4_0", "Q4_1") else {"Q4_1", "Q8_0"}
        assert set(loaded.computed) == kept
        assert loaded.notes == ()
        assert float((run(loaded, TOKENS) - expected).norm()) < share * float(expected.norm())


def test_a_safetensors_folder_and_its_gguf_give_the_same_blocks(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    model = tiny()
    for dtype in ("int8", "int4"):
        folder, file = (
            load_model(path, dtype, load_kernels("torch")) for path in (model.folder, write_gguf(model.reference))
        )
        assert torch.equal(run(folder, TOKENS), run(file, TOKENS))


def test_rows_that_do_not_divide_into_groups_stay_in_bfloat16_and_are_named(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor]
) -> None:
    folder = tiny(intermediate_size=88).folder
    loaded = load_model(folder, "int4", load_kernels("torch"))
    assert loaded.computed == ("BF16", "Q4_1", "Q8_0")
    (note,) = loaded.notes
    assert note == (
        "model.layers.0.mlp.down_proj.weight, model.layers.1.mlp.down_proj.weight are kept in bfloat16 and not in int4: "
        "the rows do not divide into groups of 32 numbers"
    )
    expected = run(load_model(folder, "fp32", load_kernels("torch")), TOKENS)
    assert float((run(loaded, TOKENS) - expected).norm()) < 0.5 * float(expected.norm())


def test_embedding_and_head_keep_eight_bits_under_int4(tiny: Callable[..., Any]) -> None:
    checkpoint = open_checkpoint(tiny().folder)
    source, config = weight_source(checkpoint), checkpoint.config
    computed = computed_types(source, config, "int4")
    assert {name for name, kind in computed.items() if kind == "Q8_0"} == {EMBEDDING, HEAD}
    norms = 4 * (2 * config.layers + 1) * config.hidden
    ends = 2 * config.vocab * config.hidden
    matrices = config.parameters - norms // 4 - ends
    assert matrix_bytes(source, config, "int4") == matrices // 32 * 20 + ends // 32 * 34 + norms
    assert matrix_bytes(source, config, "int8") == (matrices + ends) // 32 * 34 + norms


def test_kv_of_one_compute_type_is_never_taken_for_anothers(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    """A file with int8 queries and 4-bit values keeps both types under auto and int4, but not the same numbers."""
    path = write_gguf(tiny().reference, "Q4_1", other={"ffn_up": "Q8_0", "token_embd": "Q8_0", "output": "Q8_0"})
    loaded = {dtype: load_model(path, dtype, load_kernels("torch")) for dtype in ("auto", "int4", "int8", "bf16")}
    assert loaded["auto"].computed == loaded["int4"].computed
    assert len({model.numerics for model in loaded.values()}) == 4
    assert len({model.weights_digest for model in loaded.values()}) == 1


def test_kv_of_a_safetensors_folder_in_int8_is_not_taken_for_that_in_bf16(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    eight, sixteen = (load_model(folder, dtype, load_kernels("torch")) for dtype in ("int8", "bf16"))
    assert eight.weights_digest == sixteen.weights_digest
    assert eight.numerics != sixteen.numerics

"""Products and rows of packed matrices: right against float64, and the same bits whatever shares the batch."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.torch_kernels import TorchKernels

EXPANDED = ("q4_0 x fp32", "q4_1 x fp32", "q8_0 x fp32")
KINDS = ("float32", "bfloat16", "float16", "bfloat16 x bf16", "q4_0", "q4_1", "q8_0", *EXPANDED)
SHAPES = ((96, 576), (40, 1536), (1, 32), (33, 64), (17, 96), (7, 352))
ODD_SHAPES = ((7, 33), (1, 1), (19, 577), (5, 7))  # dense formats only: groups hold 32 inputs
PAIRED = "bfloat16 x bf16"  # which the reference takes input by input: without the widest matrices
CASES = [(kind, *shape) for kind in KINDS for shape in SHAPES if kind != PAIRED or shape[1] < 500]
CASES += [(kind, *shape) for kind in KINDS[:4] for shape in ODD_SHAPES]


def inputs(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def seen_by(kind: str, x: Tensor) -> Tensor:
    """What the products with a kind see of x, as float64."""
    if kind.startswith("q") and not kind.endswith("x fp32"):
        return rounded_to_int8(x)
    return (x.bfloat16() if kind.endswith("x bf16") else x).double()


def rounded_to_int8(x: Tensor) -> Tensor:
    """What the quantised products see of x, as float64."""
    groups = x.double().view(len(x), -1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.round(groups / scale) * scale).view(x.shape)


@pytest.mark.parametrize(("kind", "outs", "ins"), CASES)
def test_linear_equals_float64(kernels: Kernels, make_matrix: Callable, kind: str, outs: int, ins: int) -> None:
    matrix = make_matrix(kind, outs, ins)
    x = inputs(5, ins)
    seen = seen_by(kind, x)
    expected = seen @ matrix.values.t()
    size = seen.abs() @ matrix.values.abs().t()
    # An activation that lies between two integers may be rounded either way in float32 and float64.
    tolerance = 1e-6 * size + (0.01 * size.mean() / ins if kind.startswith("q") else 0)
    assert ((kernels.linear(x, matrix.pack(kernels)) - expected).abs() <= tolerance).all()


@pytest.mark.parametrize(("kind", "outs", "ins"), CASES)
def test_rows_keep_their_bits_in_any_batch(
    kernels: Kernels, make_matrix: Callable, kind: str, outs: int, ins: int
) -> None:
    weight = make_matrix(kind, outs, ins).pack(kernels)
    x = inputs(64, ins)
    alone = torch.cat([kernels.linear(row, weight) for row in x.split(1)])
    for rows in (*range(2, 14), 16, 17, 31, 64):
        assert torch.equal(kernels.linear(x[:rows].contiguous(), weight), alone[:rows]), rows
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(kernels.linear(x[order], weight), alone[order])


@pytest.mark.parametrize(("kind", "outs", "ins"), [(kind, 960, 576) for kind in KINDS])
def test_thread_count_changes_no_bit(
    compiled_by_threads: dict[int, CompiledKernels], make_matrix: Callable, kind: str, outs: int, ins: int
) -> None:
    matrix = make_matrix(kind, outs, ins)
    for rows in (1, 4, 65):
        first, *others = (k.linear(inputs(rows, ins), matrix.pack(k)) for k in compiled_by_threads.values())
        assert all(torch.equal(first, other) for other in others)


def test_torch_threads_change_no_bit(oracle: TorchKernels, make_matrix: Callable) -> None:
    before = torch.get_num_threads()
    try:
        for kind in KINDS:
            weight, x, results = make_matrix(kind, 960, 576).pack(oracle), inputs(20, 576), []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                results.append(oracle.linear(x, weight))
            assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize(("outs", "ins"), SHAPES)
def test_both_paths_agree_to_the_bit_on_quantised_matrices(
    compiled: CompiledKernels, oracle: TorchKernels, make_matrix: Callable, kind: str, outs: int, ins: int
) -> None:
    matrix = make_matrix(kind, outs, ins)
    x = inputs(9, ins) * torch.logspace(-20, 20, 9).unsqueeze(-1)
    x[3] = 0
    assert torch.equal(compiled.linear(x, matrix.pack(compiled)), oracle.linear(x, matrix.pack(oracle)))


def test_extreme_quants_do_not_overflow(kernels: Kernels) -> None:
    one = torch.tensor([1.0]).half().view(torch.uint8)
    zero = torch.zeros(2, dtype=torch.uint8)
    for sign in (-1, 1):
        x = torch.full((3, 64), float(sign))
        nibbles = torch.cat([one, zero, torch.full((16,), 255, dtype=torch.uint8)]).repeat(8, 2)
        assert torch.allclose(kernels.linear(x, kernels.pack_q4_1(nibbles, (8, 64))), torch.tensor(sign * 64 * 15.0))
        for quant in (127, 128):  # 128 is -128
            blocks = torch.cat([one, torch.full((32,), quant, dtype=torch.uint8)]).repeat(8, 2)
            expected = sign * 64.0 * (quant if quant < 128 else -128)
            assert torch.allclose(kernels.linear(x, kernels.pack_q8_0(blocks, (8, 64))), torch.tensor(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_is_not_finite_is_not_hidden(kernels: Kernels, make_matrix: Callable, kind: str) -> None:
    weight = make_matrix(kind, 8, 64).pack(kernels)
    for bad in (float("nan"), float("inf")):
        x = inputs(3, 64)
        x[1, 5] = bad
        out = kernels.linear(x, weight)
        assert not out[1].isfinite().any()
        assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("kind", "outs", "ins"), CASES)
def test_embedded_rows_are_the_matrix(kernels: Kernels, make_matrix: Callable, kind: str, outs: int, ins: int) -> None:
    matrix = make_matrix(kind, outs, ins)
    tokens = torch.tensor([outs - 1, 0, outs // 2, 0])
    assert torch.allclose(
        kernels.embed(tokens, matrix.pack(kernels)).double(), matrix.values[tokens], rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("kind", KINDS)
def test_both_paths_embed_the_same_bits(
    compiled: CompiledKernels, oracle: TorchKernels, make_matrix: Callable, kind: str
) -> None:
    matrix = make_matrix(kind, 50, 96)
    tokens = torch.arange(50)
    assert torch.equal(compiled.embed(tokens, matrix.pack(compiled)), oracle.embed(tokens, matrix.pack(oracle)))


def test_no_rows_give_no_rows(kernels: Kernels, make_matrix: Callable) -> None:
    for kind in KINDS:
        assert kernels.linear(torch.empty(0, 64), make_matrix(kind, 8, 64).pack(kernels)).shape == (0, 8)


def test_a_token_outside_the_vocabulary_is_refused(kernels: Kernels, make_matrix: Callable) -> None:
    weight = make_matrix("q8_0", 8, 64).pack(kernels)
    with pytest.raises(IndexError):
        kernels.embed(torch.tensor([3, 8]), weight)


def test_blocks_that_do_not_fit_are_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        kernels.pack_q4_1(torch.zeros(4, 20, dtype=torch.uint8), (4, 33))
    with pytest.raises(ValueError, match="quantised rows"):
        kernels.pack_q8_0(torch.zeros(4, 20, dtype=torch.uint8), (4, 32))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20), outs=st.integers(1, 70), groups=st.integers(1, 6), kind=st.sampled_from(KINDS))
def test_any_shape_keeps_bits_on_both_paths(
    compiled: CompiledKernels, oracle: TorchKernels, make_matrix: Callable, rows: int, outs: int, groups: int, kind: str
) -> None:
    matrix, x = make_matrix(kind, outs, groups * 32), inputs(rows, groups * 32)
    results = []
    for kernels in (compiled, oracle):
        weight = matrix.pack(kernels)
        together = kernels.linear(x, weight)
        assert torch.equal(together, torch.cat([kernels.linear(row, weight) for row in x.split(1)]))
        results.append(together)
    assert torch.allclose(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", EXPANDED)
@pytest.mark.parametrize(("outs", "ins"), SHAPES)
def test_blocks_with_float32_activations_are_the_float32_matrix_of_their_numbers(
    kernels: Kernels, make_matrix: Callable, kind: str, outs: int, ins: int
) -> None:
    weight, x = make_matrix(kind, outs, ins).pack(kernels), inputs(9, ins)
    dense = kernels.pack_dense(kernels.embed(torch.arange(outs), weight), torch.float32)
    assert torch.equal(kernels.linear(x, weight), kernels.linear(x, dense))


def test_activations_that_do_not_go_with_a_matrix_are_refused(kernels: Kernels) -> None:
    ones = torch.ones(4, 32)
    for dtype, activations in ((torch.float32, "bf16"), (torch.float16, "bf16"), (torch.bfloat16, "int8")):
        with pytest.raises(ValueError, match=f"{dtype} are not multiplied with {activations} activations"):
            kernels.pack_dense(ones, dtype, activations)
    with pytest.raises(ValueError, match="blocks are not multiplied with bf16 activations"):
        kernels.pack_q8_0(torch.zeros(4, 34, dtype=torch.uint8), (4, 32), "bf16")

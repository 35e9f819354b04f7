"""Norm, activation and rotation: right against float64, and the same bits in any batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.torch_kernels import TorchKernels, exp

WIDTHS = (576, 1536, 64, 8, 30, 2)


def rows_of(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * 3


def keeps_bits(apply: Callable[[Tensor, slice], Tensor], x: Tensor) -> None:
    together = apply(x, slice(None))
    for step in (1, 3, 16):
        parts = [
            apply(x[start : start + step].contiguous(), slice(start, start + step)) for start in range(0, len(x), step)
        ]
        assert torch.equal(torch.cat(parts), together), step


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(kernels: Kernels, width: int) -> None:
    x, weight = rows_of(65, width), rows_of(1, width, 1)[0]
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.allclose(kernels.rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-6, atol=1e-6)
    keeps_bits(lambda part, _: kernels.rms_norm(part, weight, 1e-5), x)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(kernels: Kernels, width: int) -> None:
    x = rows_of(65, 2 * width)
    x[0] = torch.linspace(-120, 120, 2 * width)
    gate, up = x.double().chunk(2, -1)
    out = kernels.silu_mul(x)
    assert torch.allclose(out.double(), torch.nn.functional.silu(gate) * up, rtol=1e-6, atol=1e-30)
    keeps_bits(lambda part, _: kernels.silu_mul(part), x)


@pytest.mark.parametrize("half", [32, 16, 5, 1])
def test_rope(kernels: Kernels, half: int) -> None:
    x, angles = rows_of(65, 3 * 2 * half), rows_of(65, half, 1)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.double().view(65, 3, 2, half).unbind(2)
    wide_cos, wide_sin = cos.double()[:, None], sin.double()[:, None]
    expected = torch.stack([first * wide_cos - second * wide_sin, second * wide_cos + first * wide_sin], 2).view(
        x.shape
    )
    assert torch.allclose(kernels.rope(x, 3, cos, sin).double(), expected, rtol=1e-5, atol=1e-5)
    keeps_bits(lambda part, at: kernels.rope(part, 3, cos[at].contiguous(), sin[at].contiguous()), x)


def test_both_paths_agree_to_the_bit_on_activation_and_rotation(
    compiled: CompiledKernels, oracle: TorchKernels
) -> None:
    x = rows_of(9, 576)
    x[0] = torch.linspace(-120, 120, 576)
    cos, sin = rows_of(9, 32, 1), rows_of(9, 32, 2)
    assert torch.equal(compiled.silu_mul(x), oracle.silu_mul(x))
    assert torch.equal(compiled.rope(x, 9, cos, sin), oracle.rope(x, 9, cos, sin))


@pytest.mark.parametrize("width", [2048, 4100])
def test_threads_change_no_bit(compiled_by_threads: dict[int, CompiledKernels], width: int) -> None:
    x, weight = rows_of(33, width), rows_of(1, width, 1)[0]
    for apply in (lambda k: k.rms_norm(x, weight, 1e-5), lambda k: k.silu_mul(x)):
        first, *others = (apply(kernels) for kernels in compiled_by_threads.values())
        assert all(torch.equal(first, other) for other in others)


def test_exp_is_accurate_and_saturates() -> None:
    x = torch.linspace(-87, 88, 20001)
    assert ((exp(x).double() / x.double().exp()) - 1).abs().max() < 2e-7
    assert exp(torch.tensor([float("-inf"), -200.0])).tolist() == [0.0, 0.0]
    assert exp(torch.tensor([1000.0])).isfinite().all()
    assert exp(torch.tensor([0.0])).item() == 1.0


def test_what_is_not_contiguous_float32_is_refused(compiled: CompiledKernels) -> None:
    with pytest.raises(ValueError, match="contiguous float32"):
        compiled.silu_mul(rows_of(8, 16).t())
    with pytest.raises(ValueError, match="contiguous float32"):
        compiled.silu_mul(rows_of(8, 16).double())


@pytest.mark.parametrize("width", [1, 15, 16, 300, 49_152])
def test_argmax_is_the_first_of_the_highest(kernels: Kernels, width: int) -> None:
    x = torch.randint(-3, 4, (5, width), generator=torch.Generator().manual_seed(width)).float()
    expected = [row.index(max(row)) for row in x.tolist()]
    assert kernels.argmax(x).tolist() == expected


@pytest.mark.parametrize("place", [0, 17, 33, 39])
def test_argmax_finds_no_place_in_rows_that_are_not_numbers(kernels: Kernels, place: int) -> None:
    x = torch.linspace(-2, 2, 40).repeat(5, 1)
    x[0, place] = float("nan")
    x[1, place] = float("inf")
    x[2, :] = float("-inf")
    x[3, : place + 1] = float("-inf")
    x[4, place] = 9.0
    assert kernels.argmax(x).tolist() == [-1, -1, -1, -1 if place == 39 else 39, place]

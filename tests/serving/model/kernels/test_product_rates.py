"""Rates are measured for every type that weights can be kept in, by the kernels in hand."""

import pytest

from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.product_rates import PACKS, rate
from netgain.serving.model.kernels.torch_kernels import TorchKernels


@pytest.mark.parametrize("dtype", PACKS)
def test_every_type_has_a_rate(compiled: CompiledKernels, dtype: str) -> None:
    found = rate(compiled, PACKS[dtype], budget_s=0.05)
    assert found["ops_per_s"] > 1e8
    assert found["repeats"] >= 1


def test_slow_kernels_multiply_fewer_rows() -> None:
    assert rate(TorchKernels("cpu", "reference"), PACKS["f32"], budget_s=0.001)["rows"] < 256

"""Rounding to 4-bit blocks gives the bytes of the reference in torch, whatever the numbers, threads and vectors."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from netgain.errors import UsageError
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.quantise import q4_1

groups = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 17), st.just(32)),
    elements=st.floats(-30000, 30000, width=32) | st.integers(-8, 8).map(lambda number: number / 2),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups)
def test_any_numbers(compiled: CompiledKernels, numbers: np.ndarray[Any, Any]) -> None:
    values = torch.from_numpy(numbers)
    assert torch.equal(compiled.quantise_q4_1(values), q4_1(values))


@pytest.mark.parametrize("size", [1e-38, 1e-9, 1e-7, 1e-4, 1.0, 1e4])
def test_every_size_of_scale(compiled_by_threads: dict[int, CompiledKernels], size: float) -> None:
    values = torch.randn(4099, 32, generator=torch.Generator().manual_seed(3)) * size
    expected = q4_1(values)
    for kernels in compiled_by_threads.values():
        assert torch.equal(kernels.quantise_q4_1(values), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38, -7e4])
@pytest.mark.parametrize("place", [0, 31])
def test_what_float16_cannot_scale_is_refused_in_any_group(compiled: CompiledKernels, bad: float, place: int) -> None:
    for group in (0, 17, 98):
        values = torch.randn(99, 32, generator=torch.Generator().manual_seed(4))
        values[group, place] = bad
        with pytest.raises(UsageError, match="which blocks with float16 scales cannot keep"):
            compiled.quantise_q4_1(values)

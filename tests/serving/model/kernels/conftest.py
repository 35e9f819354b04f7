"""Kernels under test, and random weights in every format with their exact values."""

import platform
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor

from netgain.serving.model.kernels.build import cache_directory
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels, Weight
from netgain.serving.model.kernels.torch_kernels import TorchKernels


class Matrix(NamedTuple):
    """A matrix in one format: how to pack it, and what its values are as float64 [out, in]."""

    pack: Callable[[Kernels], Weight]
    values: Tensor


@pytest.fixture(scope="session")
def compiled_by_threads(requires_compiler: list[str]) -> dict[int, CompiledKernels]:
    return {threads: CompiledKernels(threads, requires_compiler, cache_directory()) for threads in (1, 2, 3)}


@pytest.fixture(scope="session")
def compiled(compiled_by_threads: dict[int, CompiledKernels]) -> CompiledKernels:
    return compiled_by_threads[2]


@pytest.fixture(scope="session")
def portable(requires_compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> CompiledKernels:
    """The library as it is for a processor without vector extensions. Its products of bfloat16 run the loop that VDPBF16PS has,
    over words of pairs, with float64 in each lane in place of the instruction."""
    folder = tmp_path_factory.mktemp("portable")
    compiler = folder / "compiler"
    baseline = "-march=x86-64" if platform.machine() == "x86_64" else ""
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join(requires_compiler)} "$@" -O1 -Wno-psabi {baseline}\n')
    compiler.chmod(0o755)
    return CompiledKernels(2, [str(compiler)], folder / "kernels")


@pytest.fixture(scope="session")
def oracle() -> TorchKernels:
    return TorchKernels()


@pytest.fixture(scope="session", params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return request.getfixturevalue("oracle" if request.param == "torch" else "compiled")


@pytest.fixture(scope="session")
def make_matrix() -> Callable[..., Matrix]:
    return _make_matrix


@pytest.fixture
def empty_cache(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def _make_matrix(kind: str, rows: int, columns: int, seed: int = 0) -> Matrix:
    """`kind`: a number type, with activations other than its own behind an x: "q4_0 x fp32"."""
    kind, _, other = kind.partition(" x ")
    used = cast(Any, other or ("int8" if kind.startswith("q") else "fp32"))
    generator = torch.Generator().manual_seed(seed)
    if kind in ("float32", "bfloat16", "float16"):
        dtype = getattr(torch, kind)
        values = torch.randn(rows, columns, generator=generator)
        return Matrix(lambda kernels: kernels.pack_dense(values, dtype, used), values.to(dtype).double())
    size, halves = {"q4_0": (18, 1), "q4_1": (20, 2), "q8_0": (34, 1)}[kind]
    blocks = torch.randint(0, 256, (rows, columns // 32, size), generator=generator, dtype=torch.uint8)
    scales = ((torch.rand(rows, columns // 32, halves, generator=generator) - 0.5) / 4).half()
    blocks[..., : 2 * halves] = scales.view(torch.uint8)
    body, scales = blocks[..., 2 * halves :].int(), scales.double().unsqueeze(-1)
    if kind == "q4_0":
        values = scales[:, :, 0] * (torch.cat([body % 16, body // 16], -1) - 8)
        return Matrix(lambda k: k.pack_q4_0(blocks.view(rows, -1), (rows, columns), used), values.view(rows, columns))
    if kind == "q4_1":
        values = scales[:, :, 0] * torch.cat([body % 16, body // 16], -1) + scales[:, :, 1]
        return Matrix(lambda k: k.pack_q4_1(blocks.view(rows, -1), (rows, columns), used), values.view(rows, columns))
    values = scales[:, :, 0] * torch.where(body > 127, body - 256, body)
    return Matrix(lambda k: k.pack_q8_0(blocks.view(rows, -1), (rows, columns), used), values.view(rows, columns))

"""Products of bfloat16 with bfloat16 have the bits of the instruction VDPBF16PS on every path: the manual's steps taken one by
one in exact arithmetic, fused multiply-adds, float64 in every lane, and torch. The instruction itself is compiled, and runs
where the processor has it."""

import math
import platform
import random
import struct
import subprocess
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from netgain.serving.model.kernels.build import FLAGS, SOURCES
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.torch_kernels import TorchKernels

SMALLEST, LARGEST = Fraction(2) ** -126, (2 - Fraction(2) ** -23) * Fraction(2) ** 127  # normal float32 numbers
HAS_INSTRUCTION = "avx512_bf16" in Path("/proc/cpuinfo").read_text() if platform.system() == "Linux" else False
X86 = platform.machine().lower() in ("x86_64", "amd64")


def rounded(exact: Fraction) -> float:
    """To float32 as the instruction does: 24 digits, ties to even, whatever the exponent; then what is too small is zero."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    place = size.numerator.bit_length() - size.denominator.bit_length() - 24
    while size < Fraction(2) ** (place + 23):
        place -= 1
    while size >= Fraction(2) ** (place + 24):
        place += 1
    digits, rest = divmod(size, Fraction(2) ** place)
    half = Fraction(2) ** (place - 1)
    near = (digits + (rest > half or (rest == half and digits % 2 == 1))) * Fraction(2) ** place
    sign = -1.0 if exact < 0 else 1.0
    if near < SMALLEST:
        return sign * 0.0
    return sign * (math.inf if near > LARGEST else float(near))


def by_the_manual(x: Sequence[float], w: Sequence[float]) -> float:
    """Over bfloat16 numbers: of every pair the odd one first."""
    total = 0.0
    for pair in range(0, len(x), 2):
        for at in (pair + 1, pair):
            total = rounded(Fraction(total) + normal(x[at]) * normal(w[at]))
            if math.isinf(total):
                return total
    return total


def normal(x: float) -> Fraction:
    return Fraction(x) if abs(x) >= SMALLEST else Fraction(0)


def drawn(rows: int, columns: int, low: int, high: int, seed: int) -> Tensor:
    """Float32 that bfloat16 holds, of either sign, with exponents from low to high."""
    random.seed(seed)
    bits = [
        random.getrandbits(1) << 31 | random.randint(low + 127, high + 127) << 23 | random.getrandbits(7) << 16
        for _ in range(rows * columns)
    ]
    return torch.tensor([struct.unpack("<f", struct.pack("<I", one))[0] for one in bits]).view(rows, columns)


# Exponents of the inputs and of the weights: usual ones; products that end among the smallest normal numbers, some of them
# below, where sums cancel; denormal inputs (exponent -127); and sums that overflow.
RANGES = ((-4, 4, -4, 4), (-70, -58, -66, -58), (-127, -120, -10, 8), (-66, -52, -127, -60), (60, 66, 58, 62))


@pytest.mark.parametrize("ranges", RANGES)
def test_every_path_has_the_bits_of_the_manual(
    oracle: TorchKernels, compiled: CompiledKernels, portable: CompiledKernels, ranges: tuple[int, int, int, int]
) -> None:
    low, high, low_w, high_w = ranges
    x, w = drawn(6, 18, low, high, 1), drawn(20, 18, low_w, high_w, 2)
    expected = torch.tensor([[by_the_manual(a, b) for b in w.tolist()] for a in x.tolist()])
    for kernels in (oracle, compiled, portable):
        found = kernels.linear(x, kernels.pack_dense(w, torch.bfloat16, "bf16"))
        assert same_bits(found, expected), kernels.name


def test_a_sum_that_rounds_up_to_the_smallest_normal_number_only_as_a_denormal_is_zero(kernels: Kernels) -> None:
    """The odd input comes first, so it is 2**-126 less a little: with 24 digits that is smaller than the smallest normal number,
    with those of a denormal it would not be."""
    tiny, one = 2.0**-126, 1.0
    for little, left in ((1.5, 0.0), (1.0, 0.0), (0.5, tiny), (0.25, tiny)):  # in units of 2**-150
        x = torch.tensor([[2.0**-75 * little, tiny]])
        w = torch.tensor([[-(2.0**-75), one], [2.0**-75, -one]])
        found = kernels.linear(x, kernels.pack_dense(w, torch.bfloat16, "bf16"))
        assert found.flatten().tolist() == [left, -left], little


@pytest.mark.parametrize(("outs", "ins"), [(40, 576), (7, 33), (1, 1), (19, 577)])
def test_all_paths_agree_to_the_bit(
    oracle: TorchKernels, compiled: CompiledKernels, portable: CompiledKernels, outs: int, ins: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    x, w = torch.randn(9, ins, generator=generator), torch.randn(outs, ins, generator=generator)
    x *= torch.logspace(-36, 36, 9)[:, None]
    w[0] *= 1e-38
    x[3] = 0
    x[4, 0] = float("inf")
    x[5, 0] = float("nan")
    products = [k.linear(x, k.pack_dense(w, torch.bfloat16, "bf16")) for k in (oracle, compiled, portable)]
    assert same_bits(products[0], products[1])
    assert same_bits(products[0], products[2])


def test_denormals_are_numbers_again_behind_the_product(compiled: CompiledKernels) -> None:
    """The processor is told to leave them out for these products alone, in every thread."""
    x = torch.full((8, 512), 2.0**-100)
    paired, plain = (compiled.pack_dense(torch.full((600, 512), 2.0**-40), torch.bfloat16, a) for a in ("bf16", "fp32"))
    for _ in range(3):
        assert bool((compiled.linear(x, paired) == 0).all())
        assert bool((compiled.linear(x, plain) == 2.0**-131).all())
    assert float(torch.tensor(2.0**-100) * 2.0**-40) == 2.0**-140


def test_the_instruction_is_used_where_the_processor_has_it_and_only_there(compiled: CompiledKernels) -> None:
    assert ("bf16" in compiled.name) == HAS_INSTRUCTION


@pytest.mark.skipif(not X86, reason="an instruction of x86-64")
@pytest.mark.parametrize("extensions", ["-mavx512vnni -mavx512bf16", ""])
def test_the_instruction_is_compiled_for_processors_that_have_it(
    requires_compiler: list[str], tmp_path: Path, extensions: str
) -> None:
    code = tmp_path / "linear.s"
    flags = [flag for flag in FLAGS if flag not in ("-O3", "-march=native", "-shared")]
    march = ["-march=x86-64-v4", *extensions.split()]
    command = [*requires_compiler, *flags, "-O0", *march, "-S", str(SOURCES / "linear.cpp"), "-o", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("vdpbf16ps" in code.read_text()) == ("bf16" in extensions)


def same_bits(found: Tensor, expected: Tensor) -> bool:
    """All bits, the sign of zero among them; one NaN is as good as another."""
    number = ~found.isnan()
    return bool((number == ~expected.isnan()).all()) and torch.equal(
        found.masked_fill(~number, 0).view(torch.int32), expected.masked_fill(~number, 0).view(torch.int32)
    )

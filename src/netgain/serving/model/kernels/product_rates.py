"""How fast the engine's own kernels multiply, per type of weights and activations: `python -m` this, one JSON line each.

A process of its own, because `netgain doctor` asks for it and must not load torch.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from netgain.serving.model.kernels.blocks import GROUP, Q4_0_BYTES, Q4_1_BYTES, Q8_0_BYTES
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Activations, Kernels, Weight
from netgain.serving.model.kernels.select import load_kernels

ROWS = 256  # as many as a prompt chunk has: the product is limited by arithmetic
FEATURES = 2048
SHAPE = (FEATURES, FEATURES)
BUDGET_S = 0.7  # per type
MOST_REPEATS = 20
FEW_ROWS = 8  # tried first: slow kernels would take long over all rows

Pack = Callable[[Kernels], Weight]


def main() -> None:
    """Entry point; stops at the first type that the kernels refuse, with a traceback on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, required=True)
    threads = parser.parse_args().threads
    kernels = load_kernels("auto", threads)
    compiled = isinstance(kernels, CompiledKernels)
    torch.set_num_threads(1 if compiled else threads)
    print(json.dumps({"kernels": kernels.name, "note": kernels.note}), flush=True)
    for dtype, pack in PACKS.items():
        print(json.dumps({"dtype": dtype, "threads": threads, **rate(kernels, pack)}), flush=True)


def rate(kernels: Kernels, pack: Pack, budget_s: float = BUDGET_S) -> dict[str, float | int]:
    """Best operations per second within about `budget_s`, the rows multiplied at once, and how often it was tried."""
    weight = pack(kernels)

    def seconds(rows: int) -> float:
        x = torch.randn(rows, FEATURES)
        start_s = time.perf_counter()
        kernels.linear(x, weight)
        return time.perf_counter() - start_s

    seconds(FEW_ROWS)
    rows = ROWS if seconds(FEW_ROWS) * ROWS / FEW_ROWS < budget_s else FEW_ROWS
    taken: list[float] = []
    end_s = time.perf_counter() + budget_s
    while len(taken) < MOST_REPEATS and (not taken or time.perf_counter() < end_s):
        taken.append(seconds(rows))
    return {"ops_per_s": 2.0 * rows * FEATURES * FEATURES / min(taken), "rows": rows, "repeats": len(taken)}


def _dense(dtype: torch.dtype, activations: Activations = "fp32") -> Pack:
    return lambda kernels: kernels.pack_dense(torch.randn(SHAPE), dtype, activations)


def _blocks(block_bytes: int, scales: int) -> torch.Tensor:
    """Random quants behind scales that are ordinary numbers."""
    blocks = torch.randint(0, 256, (FEATURES, FEATURES // GROUP, block_bytes), dtype=torch.uint8)
    blocks[..., : 2 * scales] = torch.rand(FEATURES, FEATURES // GROUP, scales).half().view(torch.uint8)
    return blocks.view(FEATURES, -1)


# By the names that an engine gives to the types its weights are kept and multiplied in (see computed_types).
PACKS: Mapping[str, Pack] = MappingProxyType(
    {
        "f32": _dense(torch.float32),
        "bf16": _dense(torch.bfloat16),
        "f16": _dense(torch.float16),
        "q8_0": lambda kernels: kernels.pack_q8_0(_blocks(Q8_0_BYTES, 1), SHAPE),
        "q4_1": lambda kernels: kernels.pack_q4_1(_blocks(Q4_1_BYTES, 2), SHAPE),
        "q4_0": lambda kernels: kernels.pack_q4_0(_blocks(Q4_0_BYTES, 1), SHAPE),
        "bf16 x bf16": _dense(torch.bfloat16, "bf16"),
        "q8_0 x fp32": lambda kernels: kernels.pack_q8_0(_blocks(Q8_0_BYTES, 1), SHAPE, "fp32"),
        "q4_1 x fp32": lambda kernels: kernels.pack_q4_1(_blocks(Q4_1_BYTES, 2), SHAPE, "fp32"),
        "q4_0 x fp32": lambda kernels: kernels.pack_q4_0(_blocks(Q4_0_BYTES, 1), SHAPE, "fp32"),
    }
)


if __name__ == "__main__":
    main()

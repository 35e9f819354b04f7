"""Time of the CPU kernels on SmolLM2-135M's shapes with random weights: all linear layers of a step, and its attention.

python -m benchmarks.kernels --json FILE [--kernels compiled|torch] [--threads N]. Each figure is the minimum of several
runs, because other work on the machine only ever adds time.
"""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import _report
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels, Weight
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.kv import block_shapes

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, DIM, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152
SHAPES = ((HIDDEN + 2 * KV_HEADS * DIM, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN))
KINDS = ("f32", "bf16", "quantised")
ROWS = (1, 2, 4, 8, 16, 64, 512)
CONTEXTS = (256, 1024, 4096)
BLOCK_TOKENS = 16
REPEATS = 7
BUDGET_S = 4.0  # for the repeats of one figure


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--kernels", choices=("auto", "compiled", "torch"), default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=(*KINDS, "attention"), help="measure only this part")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kernels = load_kernels(arguments.kernels, arguments.threads)
    print(f"{kernels.name}, {arguments.threads} threads, ms per step (minimum)\n")

    figures: dict[str, _report.Figure] = {}
    for name in KINDS:
        if arguments.only in (None, name):
            figures |= time_linears(kernels, name)
    if arguments.only in (None, "attention"):
        figures |= time_attention(kernels)
    context = {"kernels": kernels.name, "threads": arguments.threads}
    _report.write(arguments.json, figures, context, "milliseconds per step, minimum of several")


def time_linears(kernels: Kernels, name: str) -> dict[str, _report.Figure]:
    """All linears of a step: 30 layers for every row, and the vocabulary for at most 64 (prompts need one row of it)."""
    layers = [[make_weight(kernels, name, shape) for shape in SHAPES] for _ in range(LAYERS)]
    head = make_weight(kernels, name, (VOCABULARY, HIDDEN), head=True)
    megabytes = (head.nbytes + sum(weight.nbytes for layer in layers for weight in layer)) / 1e6
    print(f"{name} linears, {megabytes:.0f} MB\n  rows   layers     head      sum   per row   GB/s")
    figures: dict[str, _report.Figure] = {f"{name}_megabytes": megabytes}
    for rows in ROWS:
        inputs = {width: torch.randn(rows, width) for width in (HIDDEN, FFN)}

        def step(inputs: dict[int, Tensor] = inputs) -> None:
            for layer in layers:
                for weight in layer:
                    kernels.linear(inputs[weight.shape[1]], weight)

        last = inputs[HIDDEN][:64].contiguous()

        def logits(x: Tensor = last) -> None:
            kernels.linear(x, head)

        layers_ms, head_ms = minimum_ms(step), minimum_ms(logits)
        total = layers_ms + head_ms
        print(f"{rows:6d} {layers_ms:8.2f} {head_ms:8.2f} {total:8.2f} {total / rows:9.3f} {megabytes / total:6.1f}")
        figures |= {f"{name}_layers_ms_{rows}": layers_ms, f"{name}_head_ms_{rows}": head_ms}
    print()
    return figures


def time_attention(kernels: Kernels) -> dict[str, _report.Figure]:
    """All 30 layers over a bf16 cache: decode of one and of eight requests, verifying 5 tokens, a 256-token chunk."""
    print("attention, ms per step\n context  decode 1  decode 8  verify 5  prefill 256")
    figures: dict[str, _report.Figure] = {}
    for context in CONTEXTS:
        line = f"{context:8d}"
        for label, requests, rows in (
            ("decode_1", 1, 1),
            ("decode_8", 8, 1),
            ("verify_5", 1, 5),
            ("prefill_256", 1, 256),
        ):
            blocks = -(-context // BLOCK_TOKENS)
            tables = torch.randperm(requests * blocks).int().view(requests, blocks)
            positions = torch.arange(context - rows, context).repeat(requests)
            segments = torch.arange(requests).repeat_interleave(rows)
            shapes = block_shapes(KV_HEADS, DIM, BLOCK_TOKENS, torch.bfloat16)
            caches = [[torch.randn(requests * blocks, *shape).bfloat16() for shape in shapes] for _ in range(LAYERS)]
            q = torch.randn(len(positions), HEADS * DIM)
            plan = kernels.plan(positions, segments, tables, BLOCK_TOKENS)

            def step(q: Tensor = q, caches: list[list[Tensor]] = caches, plan: AttentionPlan = plan) -> None:
                for cache in caches:
                    kernels.attention(q, cache[0], cache[1], plan, HEADS)

            figures[f"attention_{label}_{context}_ms"] = elapsed = minimum_ms(step)
            line += f" {elapsed:9.2f}"
        print(line)
    return figures


def make_weight(kernels: Kernels, name: str, shape: tuple[int, int], head: bool = False) -> Weight:
    if name != "quantised":
        return kernels.pack_dense(torch.randn(shape), torch.float32 if name == "f32" else torch.bfloat16)
    size = 34 if head else 20
    blocks = torch.randint(0, 256, (shape[0], shape[1] // 32, size), dtype=torch.uint8)
    scales = torch.rand(shape[0], shape[1] // 32, 1 if head else 2).half().view(torch.uint8)
    blocks[..., : scales.shape[-1]] = scales
    return (kernels.pack_q8_0 if head else kernels.pack_q4_1)(blocks.view(shape[0], -1), shape)


def minimum_ms(run: Callable[[], None]) -> float:
    run()
    best, stop = float("inf"), time.perf_counter() + BUDGET_S
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > stop:
            break
    return best * 1e3


if __name__ == "__main__":
    main()

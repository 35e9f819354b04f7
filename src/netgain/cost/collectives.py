"""What tensor and pipeline parallelism pay: collectives by latency and bandwidth, and the bubble of a pipeline."""

from typing import Literal

from netgain.errors import UsageError

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point"]


def traffic_factor(kind: Collective, ranks: int) -> float:
    """Bytes over each rank's link per byte of the message: 2 (n-1)/n for an all-reduce, (n-1)/n for its halves and for
    all-to-all, 1 from one rank to another (NVIDIA nccl-tests, doc/PERFORMANCE.md)."""
    if ranks < 1:
        raise UsageError(f"a collective of {ranks} ranks cannot be; give at least 1")
    if kind == "point-to-point":
        return 1.0
    return (2.0 if kind == "all-reduce" else 1.0) * (ranks - 1) / ranks


def collective_s(kind: Collective, ranks: int, size_bytes: float, latency_s: float, bandwidth: float) -> float:
    """Ring algorithm: hops x alpha + factor x S / B; 2 (n - 1) hops for an all-reduce, n - 1 for the others."""
    factor = traffic_factor(kind, ranks)
    hops = 1 if kind == "point-to-point" else (2 if kind == "all-reduce" else 1) * (ranks - 1)
    if bandwidth <= 0.0:
        raise UsageError("a collective needs a bandwidth above 0")
    return hops * latency_s + factor * size_bytes / bandwidth


def tensor_parallel_bytes(layers: int, tokens: float, hidden: int, value_bytes: float) -> float:
    """Bytes all-reduced per step: two per layer, after attention and after the MLP, of tokens x h x b (Megatron-LM,
    arXiv 1909.08053)."""
    return 2.0 * layers * tokens * hidden * value_bytes


def pipeline_bubble(stages: int, micro_batches: int) -> float:
    """Idle share of a pipeline that fills and drains, (p - 1) / (m + p - 1), with equal stages (GPipe, arXiv 1811.06965).

    Online decoding never drains; there the bubble comes from unequal micro-batches.
    """
    if stages < 1 or micro_batches < 1:
        raise UsageError(f"{stages} stages and {micro_batches} micro-batches cannot be; give at least 1 of each")
    return (stages - 1) / (micro_batches + stages - 1)

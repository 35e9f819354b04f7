"""What KV weighs, and when moving it beats computing it again."""

import math

from netgain.errors import UsageError

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


def token_bytes(layers: int, kv_heads: int, head_dim: int, value_bytes: float, ranks: int = 1) -> float:
    """Bytes of KV per token and device: K and V of every layer, 2 L max(1, h_kv / t) d b.

    With more tensor-parallel ranks t than KV heads the heads are replicated (Megatron-LM, vLLM), so a device never holds
    less than one head per layer. Raises UsageError where heads cannot be shared out evenly.
    """
    if ranks > 1 and kv_heads % ranks and ranks % kv_heads:
        raise UsageError(f"{kv_heads} KV heads cannot be shared out over {ranks} ranks; one must divide the other")
    return 2.0 * layers * max(1.0, kv_heads / ranks) * head_dim * value_bytes


def latent_token_bytes(layers: int, rank_dim: int, rope_dim: int, value_bytes: float) -> float:
    """Bytes of KV per token with latent attention, L (r_kv + d_rope) b, on every rank (DeepSeek-V2, arXiv 2405.04434)."""
    return layers * (rank_dim + rope_dim) * value_bytes


def handoff_bandwidth(request_bytes: float, completions_per_s: float) -> float:
    """KV bytes per second from prefill to decode pool: bytes per request times prefill completions per second.

    The mean demand; queues, other traffic and the protocol come on top (the setting is that of DistServe, OSDI 2024).
    """
    return request_bytes * completions_per_s


def transfer_s(size_bytes: float, bandwidth: float, latency_s: float = 0.0) -> float:
    """Seconds to move bytes over an effective bandwidth, alpha + n / B; infinite without bandwidth."""
    if size_bytes == 0.0:
        return latency_s
    return latency_s + (size_bytes / bandwidth if bandwidth > 0.0 else math.inf)


def exposed_s(transfer: float, prefill_s: float, chunks: int) -> float:
    """What the decode side waits for a transfer in `chunks` equal parts that starts as prefill finishes each part.

    max(T_x - T_prefill (c - 1) / c, T_x / c): the last part can hide behind nothing. One chunk hides nothing.
    """
    if chunks < 1:
        raise UsageError(f"a transfer in {chunks} chunks cannot be; give at least 1")
    return max(transfer - prefill_s * (chunks - 1) / chunks, transfer / chunks)


def warm_s(lookup_s: float, queue_s: float, transfer: float, deserialise_s: float, suffix_s: float) -> float:
    """Time to the first token with the prefix loaded: lookup + queue + transfer + deserialise + suffix prefill.

    Pays only while it is below the full prefill.
    """
    return lookup_s + queue_s + transfer + deserialise_s + suffix_s


def break_even_bandwidth(size_bytes: float, full_s: float, other_s: float) -> float:
    """The least effective bandwidth at which loading is as quick as computing; infinite when the rest alone takes longer."""
    left = full_s - other_s
    return size_bytes / left if left > 0.0 else math.inf


def compressed_s(size_bytes: float, ratio: float, bandwidth: float, encode_s: float, decode_s: float) -> float:
    """Encode, move size / ratio, decode. Must beat the raw transfer, and a quality check (CacheGen, SIGCOMM 2024)."""
    if ratio <= 0.0:
        raise UsageError(f"a compression ratio of {ratio} cannot be; 4 means a quarter of the bytes")
    return encode_s + transfer_s(size_bytes / ratio, bandwidth) + decode_s


def saved_tokens(hits: list[tuple[float, float]]) -> float:
    """Prefill tokens that hits save: (requests that hit, tokens found by each) added up. A rate of requests says nothing."""
    return math.fsum(requests * tokens for requests, tokens in hits)

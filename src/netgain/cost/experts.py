"""Mixture of experts over devices: what routing sends where, and what an uneven load costs."""

import math
from collections.abc import Sequence

import msgspec

from netgain.errors import UsageError


class Routed(msgspec.Struct, frozen=True):
    """A token: the device it lies on, and the experts it was routed to."""

    device: int
    experts: tuple[int, ...]


def device_of(placement: Sequence[Sequence[int]], expert: int) -> int:
    """The device that holds an expert. Raises UsageError for one that is nowhere."""
    for device, held in enumerate(placement):
        if expert in held:
            return device
    raise UsageError(f"expert {expert} is on no device of the placement {[list(held) for held in placement]}")


def pieces_sent(tokens: Sequence[Routed], placement: Sequence[Sequence[int]]) -> list[list[int]]:
    """Pieces that device i sends to device j, [i][j]: one per token and distinct other device among its experts'."""
    sent = [[0] * len(placement) for _ in placement]
    for token in tokens:
        if not 0 <= token.device < len(placement):
            raise UsageError(f"a token lies on device {token.device}, and there are {len(placement)}")
        for target in {device_of(placement, expert) for expert in token.experts} - {token.device}:
            sent[token.device][target] += 1
    return sent


def expected_ranks(experts: int, ranks: int, top_k: int) -> float:
    """Distinct ranks that a token's experts lie on, under uniform routing: e (1 - C(E - E/e, k) / C(E, k)).

    Raises UsageError unless the experts can be shared out evenly and top_k of them exist.
    """
    if experts < 1 or ranks < 1 or experts % ranks:
        raise UsageError(f"{experts} experts cannot be shared out evenly over {ranks} ranks")
    if not 1 <= top_k <= experts:
        raise UsageError(f"{top_k} experts per token cannot be chosen of {experts}")
    return ranks * (1.0 - math.comb(experts - experts // ranks, top_k) / math.comb(experts, top_k))


def dispatch_bytes(
    tokens: float, ranks_per_token: float, hidden: int, value_bytes: float, scale_bytes: float = 0.0
) -> float:
    """Bytes of one layer's dispatch: tokens x ranks x (h b + scales); the share that stays on its rank is included."""
    return tokens * ranks_per_token * (hidden * value_bytes + scale_bytes)


def combine_bytes(tokens: float, ranks_per_token: float, hidden: int, value_bytes: float = 2.0) -> float:
    """Bytes of one layer's combine, usually in bf16: tokens x ranks x h b."""
    return tokens * ranks_per_token * hidden * value_bytes


def touched_experts(experts: int, top_k: int, tokens: float) -> float:
    """Distinct experts that a batch touches under uniform routing, E (1 - (1 - k/E)^B): what decode reads of the weights."""
    if not 1 <= top_k <= experts:
        raise UsageError(f"{top_k} experts per token cannot be chosen of {experts}")
    return experts * (1.0 - math.pow(1.0 - top_k / experts, tokens))


def hot_expert_loads(experts: int, ranks: int, hot_share: float) -> list[float]:
    """Share of the traffic per rank when one expert draws `hot_share` and the others the rest evenly.

    Even placement is no even load: the first rank, which holds the hot expert, is the layer's time.
    """
    if experts < 2 or ranks < 1 or experts % ranks:
        raise UsageError(f"{experts} experts cannot be shared out evenly over {ranks} ranks, one of them hot")
    other = (1.0 - hot_share) / (experts - 1)
    held = experts // ranks
    return [hot_share + (held - 1) * other, *([held * other] * (ranks - 1))]


def imbalance(loads: Sequence[float]) -> float:
    """Largest load over the mean: the factor by which the slowest rank stretches the experts' time."""
    mean = math.fsum(loads) / len(loads) if loads else 0.0
    if mean <= 0.0:
        raise UsageError("loads that are all zero have no imbalance")
    return max(loads) / mean

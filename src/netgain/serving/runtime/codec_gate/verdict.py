"""What was measured of a codec on a model, and whether that is little enough a loss to serve with."""

from typing import Literal

import msgspec

State = Literal["token-identical", "pass", "fail", "not enough"]


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """A figure with its 95 % interval over texts."""

    value: float
    low: float
    high: float


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the quality gate (docs/quality.md), and how many points fewer of the answers in the prompt may be found.
    `answered`: the least share that the model must find with its own KV to be judged by that."""

    perplexity_ratio: float = 1.01
    kl_mean: float = 0.02
    kl_p99: float = 0.3
    same_first: float = 0.94
    retrieval: float = 0.02
    answered: float = 0.25


LIMITS = Limits()


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Of continuing from decoded KV of a prefix, against the model's own. `kl` in nats per position; `found` and `found_raw`
    of `asked` answers that stand in the prompt."""

    perplexity_ratio: Interval
    kl: Interval
    kl_p99: float
    same_first: Interval
    positions: int
    texts: int
    found: int
    found_raw: int
    asked: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One codec. `ratio`: raw over coded bytes of the same objects, headers and tables counted. Rates in raw bytes per second.
    `loss` is None where decoding gave every bit back. `why`: what the state rests on."""

    name: str
    id: str
    lossy: bool
    ratio: float
    table_bytes: int
    encode_bytes_per_s: float
    decode_bytes_per_s: float
    loss: Loss | None
    state: State
    why: str


def judge(loss: Loss, limits: Limits = LIMITS) -> tuple[State, str]:
    """Fails where an interval lies beyond its limit, passes where all lie within."""
    beyond, open_ones = [], []
    for what, figure, limit, spelled in (
        ("perplexity", loss.perplexity_ratio, limits.perplexity_ratio, "{:.2%} more"),
        ("KL", loss.kl, limits.kl_mean, "{:.4f} nats"),
    ):
        shown = spelled.format(figure.value - 1 if what == "perplexity" else figure.value)
        allowed = spelled.format(limit - 1 if what == "perplexity" else limit)
        if figure.low > limit:
            beyond.append(f"{what}: {shown}, limit {allowed}")
        elif figure.high > limit:
            open_ones.append(f"{what}: {shown}, but its interval reaches over the limit {allowed}")
    if loss.kl_p99 > limits.kl_p99:
        (beyond if beyond else open_ones).append(f"p99 of KL: {loss.kl_p99:.3f} nats, limit {limits.kl_p99:g}")
    if loss.same_first.high < limits.same_first:
        beyond.append(f"the same first choice at {loss.same_first.value:.1%}, limit {limits.same_first:.0%}")
    elif loss.same_first.low < limits.same_first:
        open_ones.append(
            f"the same first choice at {loss.same_first.value:.1%}, but its interval reaches below {limits.same_first:.0%}"
        )
    judged, lost = _retrieval(loss, limits)
    if lost:
        beyond.append(lost)
    if beyond:
        return "fail", "; ".join(beyond)
    if open_ones:
        return "not enough", "; ".join(open_ones)
    return "pass", "every figure lies within its limit" + ("" if judged else "; model too weak to judge retrieval")


def _retrieval(loss: Loss, limits: Limits) -> tuple[bool, str | None]:
    """Whether the model can be judged by what it finds, and what is lost."""
    if not loss.asked or loss.found_raw < limits.answered * loss.asked:
        return False, None
    fewer = (loss.found_raw - loss.found) / loss.asked
    if fewer <= limits.retrieval:
        return True, None
    return True, f"{loss.found} answers found in the prompt, {loss.found_raw} with the model's own KV, of {loss.asked}"

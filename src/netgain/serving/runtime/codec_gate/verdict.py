"""What was measured of a codec on a model, and whether that is little enough a loss to serve with."""

import math
from collections.abc import Callable
from typing import Literal

import msgspec

LostInterval = Callable[[int, int, int], tuple[float, float]]  # of won less lost: items, lost, won
MOST_MORE = 1_000_000

State = Literal["token-identical", "pass", "fail", "not enough"]


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """A figure with its 95 % interval."""

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
    """Of continuing from decoded KV of a prefix, against the model's own. `kl` in nats per position; intervals are over `texts`.
    Of `asked` answers that stand in the prompt, `found` and `found_raw` were found, `won` of them by decoded KV alone; `fewer` is
    the share that is lost, less what is won, with an interval for paired answers."""

    perplexity_ratio: Interval
    kl: Interval
    kl_p99: Interval
    same_first: Interval
    positions: int
    texts: int
    found: int
    found_raw: int
    asked: int
    won: int
    fewer: Interval

    @property
    def lost(self) -> int:
        return self.found_raw - self.found + self.won


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


def judge(loss: Loss, interval: LostInterval, limits: Limits = LIMITS) -> tuple[State, str]:
    """Fails where an interval lies beyond its limit, passes where all lie within; in between it cannot be told, and how many more
    texts or questions would tell it is said."""
    beyond, open_ones = [], []
    nats = "{:.4f} nats"
    for what, figure, limit, spelled, base in (
        ("perplexity", loss.perplexity_ratio, limits.perplexity_ratio, "{:.2%} more", 1.0),
        ("KL", loss.kl, limits.kl_mean, nats, 0.0),
        ("p99 of KL", loss.kl_p99, limits.kl_p99, nats, 0.0),
        ("another first choice", _less(1.0, loss.same_first), 1.0 - limits.same_first, "{:.1%}", 0.0),
    ):
        shown, low, high, allowed = (spelled.format(x - base) for x in (figure.value, figure.low, figure.high, limit))
        says = f"{what}: {shown} ({low} to {high}), limit {allowed}"
        if figure.low > limit:
            beyond.append(says)
        elif figure.high > limit:
            open_ones.append(
                f"{says}: cannot be judged with so few prompts: {_wanted(more_texts(figure, limit, loss.texts))}"
            )
    judged = loss.asked > 0 and loss.found_raw >= limits.answered * loss.asked
    if judged and loss.fewer.high > limits.retrieval:
        says = (
            f"{loss.found} answers found in the prompt, {loss.found_raw} with the model's own KV, of {loss.asked}: "
            f"{loss.fewer.value:.1%} fewer ({loss.fewer.low:.1%} to {loss.fewer.high:.1%}), limit {limits.retrieval:.0%}"
        )
        if loss.fewer.low > limits.retrieval:
            beyond.append(says)
        else:
            more = more_questions(loss, interval, limits.retrieval)
            open_ones.append(f"{says}: cannot be judged with so few prompts: {_wanted(more, 'questions (--passages)')}")
    if beyond:
        return "fail", "; ".join(beyond)
    if open_ones:
        return "not enough", "; ".join(open_ones)
    return "pass", "every figure lies within its limit" + ("" if judged else "; model too weak to judge retrieval")


def more_texts(figure: Interval, limit: float, texts: int) -> int | None:
    """How many more texts would put the interval on one side of the limit, if the figure stays as it is and intervals narrow with
    the root of their number; None: more than anybody has."""
    gap = abs(limit - figure.value)
    wide = figure.high - figure.value if figure.value <= limit else figure.value - figure.low
    if gap <= 0.0 or texts * (wide / gap) ** 2 - texts > MOST_MORE:
        return None
    return max(1, math.ceil(texts * (wide / gap) ** 2) - texts)


def more_questions(loss: Loss, interval: LostInterval, limit: float) -> int | None:
    """The same of questions, which are lost and won as often as they were."""

    def told(times: float) -> bool:
        low, high = interval(round(loss.asked * times), round(loss.lost * times), round(loss.won * times))
        return -high > limit or -low <= limit

    times = 1.0
    while not told(times):
        times *= 1.05
        if loss.asked * times > MOST_MORE:
            return None
    return max(1, math.ceil(loss.asked * times) - loss.asked)


def _less(whole: float, figure: Interval) -> Interval:
    return Interval(whole - figure.value, whole - figure.high, whole - figure.low)


def _wanted(more: int | None, what: str = "texts") -> str:
    return f"{more:,} more {what}" if more is not None else f"it lies too near to the limit for any number of {what}"

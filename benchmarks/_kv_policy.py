"""Is the decision right? Requests that always load, never load and go by measurement, by turns, over links of given shapes."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from benchmarks import _kv_process, _report
from benchmarks._kv_process import prompt_of
from benchmarks._pieces import Found, Kept, Piece, Value

RATES = ("20MB", "50MB", "100MB", "200MB", "500MB", "1GB", "2GB", "5GB", "10GB")
TOKENS = 1024
SLOW = ("20MB", "50MB", "100MB")  # links over which a load takes about as long as computing, or a good part of it
POLICIES = ("always", "never", "measured")
PART = "policy/"
_TURNS = 3  # of each repeat: the largest of nine regrets is sought, so each must be well known
_WARM_UPS = 3  # store, learn what computing costs, learn the link
_QUICK = 3  # loads of each arm in a turn where they are a small part of it: their median is one time
_RESAMPLES, _SEED = 2000, 1


def nothing_known() -> dict[str, _report.Figure]:
    return {"policy_regret": None, "policy_median_error": None}


def pieces(repeats: int) -> list[Piece]:
    turn_s = {"20MB": 2.4, "50MB": 1.7}
    return [
        Piece(
            f"{PART}{rate}/{repeats}",
            5.0 + (_WARM_UPS + _TURNS * repeats) * turn_s.get(rate, 1.2),
            partial(_measure, rate, _TURNS * repeats),
        )
        for rate in RATES
    ]


class Regret(NamedTuple):
    """Of the policy on one link, with the interval of 95 % over turns; `better`: what it is set against, by halves."""

    regret: float
    low: float
    high: float
    better: tuple[str, str]


def regret(times: Mapping[str, Sequence[float]]) -> Regret:
    """The median time of the policy over that of the better of always and never loading, less 1.

    Which one is better is decided by the other half of the turns (even by odd, odd by even): the smaller of two medians over
    the same turns that are then compared with is smaller than either really is, which alone would look like regret where both are
    about as good.
    """
    turns = [tuple(one) for one in zip(*(times[policy] for policy in POLICIES), strict=True)]
    value, better = _crossed(turns)
    random = Random(_SEED)
    resampled = sorted(_crossed(random.choices(turns, k=len(turns)))[0] for _ in range(_RESAMPLES))
    return Regret(value, resampled[_RESAMPLES // 40], resampled[-_RESAMPLES // 40], better)


def _crossed(turns: Sequence[tuple[float, ...]]) -> tuple[float, tuple[str, str]]:
    halves = turns[::2], turns[1::2] or turns[::2]
    better = [min((0, 1), key=lambda arm: statistics.median(turn[arm] for turn in half)) for half in reversed(halves)]
    against = [turn[arm] for half, arm in zip((turns[::2], turns[1::2]), better, strict=True) for turn in half]
    value = statistics.median(turn[2] for turn in turns) / statistics.median(against) - 1
    return value, (POLICIES[better[0]], POLICIES[better[1]])


def found(kept: Kept, repeats: int) -> Found:
    """`policy_regret`: the largest over links (see regret). `policy_median_error`: of all measured decisions, the median of |time
    from admission to first token / prediction - 1|."""
    measured = {name.partition("/")[0]: value for name, value in kept.of(PART).items() if name.endswith(f"/{repeats}")}
    if not measured:
        return Found({}, {}, {})
    medians = {
        rate: {policy: statistics.median(times) for policy, times in value["times"].items()}
        for rate, value in measured.items()
    }
    regrets = {rate: regret(value["times"]) for rate, value in measured.items()}
    errors = [error for value in measured.values() for error in value["errors"]]
    whole = len(measured) == len(RATES)
    reason = f"only {len(measured)} of {len(RATES)} links were measured"
    return Found(
        {
            "policy_regret": max(one.regret for one in regrets.values()) if whole else None,
            "policy_median_error": statistics.median(errors) if whole and errors else None,
        },
        {"policy_medians_s": medians, "policy_regrets": {rate: one._asdict() for rate, one in regrets.items()}},
        {} if whole else {"policy_regret": reason, "policy_median_error": reason},
        sum(value["wrong"] for value in measured.values()),
    )


def _measure(rate: str, turns: int) -> Value:
    tier = f"dram:1GiB?bandwidth={rate}&latency=200us"
    arms = {policy: (tier, policy) for policy in POLICIES}
    times: dict[str, list[float]] = {policy: [] for policy in arms}
    errors: list[float] = []
    wrong = 0
    with _kv_process.Arms(arms) as engines:
        prompt = prompt_of(engines.tokenizer, TOKENS)
        wanted, *_ = [engines.first(policy, prompt).output_ids for _ in range(_WARM_UPS) for policy in arms]
        for turn in range(turns):
            taken: dict[str, list[float]] = {policy: [] for policy in arms}
            asked = _QUICK if rate not in SLOW else 1
            for policy in _order(turn, asked):
                answer = engines.first(policy, prompt)
                wrong += answer.output_ids != wanted
                taken[policy].append(answer.ttft_s)
                if policy == "measured" and answer.error is not None:
                    errors.append(answer.error)
            for policy, seconds in taken.items():
                times[policy].append(statistics.median(seconds))
    return {"times": times, "errors": errors, "wrong": wrong}


def _order(turn: int, loads: int) -> list[str]:
    """Who is asked in a turn: by turns the two that load, so often, and once who never does; every other turn is reversed."""
    asked = ["always", "measured"] * loads
    asked.insert(turn % len(asked), "never")
    return asked if turn % 2 else asked[::-1]

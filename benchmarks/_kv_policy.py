"""Is the decision right? Requests that always load, never load and go by measurement, by turns, over links of given shapes."""

import statistics
from functools import partial

from benchmarks import _kv_process, _report
from benchmarks._kv_process import prompt_of
from benchmarks._pieces import Found, Kept, Piece, Value

RATES = ("20MB", "50MB", "100MB", "200MB", "500MB", "1GB", "2GB", "5GB", "10GB")
TOKENS = 1024
POLICIES = ("always", "never", "measured")
PART = "policy/"
_TURNS = 3  # of each repeat: the largest of nine regrets is sought, so each must be well known
_WARM_UPS = 3  # store, learn what computing costs, learn the link


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


def found(kept: Kept, repeats: int) -> Found:
    """`policy_regret`: the largest over links of measured / better of the other two - 1, by medians. `policy_median_error`: of
    all measured decisions, the median of |time from admission to first token / prediction - 1|."""
    measured = {name.partition("/")[0]: value for name, value in kept.of(PART).items() if name.endswith(f"/{repeats}")}
    if not measured:
        return Found({}, {}, {})
    medians = {
        rate: {policy: statistics.median(times) for policy, times in value["times"].items()}
        for rate, value in measured.items()
    }
    regrets = {rate: one["measured"] / min(one["always"], one["never"]) - 1 for rate, one in medians.items()}
    errors = [error for value in measured.values() for error in value["errors"]]
    whole = len(measured) == len(RATES)
    reason = f"only {len(measured)} of {len(RATES)} links were measured"
    return Found(
        {
            "policy_regret": max(regrets.values()) if whole else None,
            "policy_median_error": statistics.median(errors) if whole and errors else None,
        },
        {"policy_medians_s": medians, "policy_regrets": regrets},
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
            for policy in arms if turn % 2 else reversed(arms):
                answer = engines.first(policy, prompt)
                wrong += answer.output_ids != wanted
                times[policy].append(answer.ttft_s)
                if policy == "measured" and answer.error is not None:
                    errors.append(answer.error)
    return {"times": times, "errors": errors, "wrong": wrong}

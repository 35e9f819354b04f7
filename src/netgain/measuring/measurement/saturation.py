"""The search for the highest rate that a server sustains: which rate to try next, from what every rate showed so far.

Pure: it knows no server and no clock, so that it can be tried on servers that are only a function.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

Outcomes = Mapping[
    float, Sequence[bool | None]
]  # per rate, whether each window met the SLO; None: void, it tells nothing
MOST_VOID = 3  # windows at one rate that are void before it is given up


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """`start_per_s`: the first rate. `precision`: the bracket ends when its upper rate is at most 1 + precision times the lower.

    `repeats`: each end of the bracket is tried until the majority of so many windows is certain. `most_windows`: in all.
    """

    start_per_s: float
    precision: float = 0.1
    repeats: int = 3
    step: float = 2.0
    least_per_s: float = 1e-3
    most_per_s: float = 1e5
    most_windows: int = 24  # void ones included


class Bracket(msgspec.Struct, frozen=True):
    """`low`: the highest rate that held below all that did not. `high`: the lowest that did not. None: there is none so far."""

    low: float | None
    high: float | None


def bracket(outcomes: Outcomes) -> Bracket:
    """By majority of the windows at each rate; a rate with a tie is neither."""
    high = min((rate for rate in outcomes if _verdict(outcomes[rate]) is False), default=None)
    low = max(
        (rate for rate in outcomes if _verdict(outcomes[rate]) is True and (high is None or rate < high)), default=None
    )
    return Bracket(low, high)


def next_rate(outcomes: Outcomes, rules: Rules) -> float | None:
    """Bracketing, then bisection, then repeats at both ends; a repeat that overturns an end moves the bracket. None: done."""
    if sum(map(len, outcomes.values())) >= rules.most_windows:
        return None
    if not outcomes:
        return rules.start_per_s
    tied = [rate for rate, seen in outcomes.items() if _verdict(seen) is None]
    if any(seen.count(None) >= MOST_VOID and _verdict(seen) is None for seen in outcomes.values()):
        return None
    if tied:
        return min(tied)
    found = bracket(outcomes)
    if found.high is None:
        assert found.low is not None
        return found.low * rules.step if found.low < rules.most_per_s else _unconfirmed(found, outcomes, rules)
    if found.low is None:
        return found.high / rules.step if found.high > rules.least_per_s else _unconfirmed(found, outcomes, rules)
    if found.high / found.low > 1.0 + rules.precision:
        return math.sqrt(found.low * found.high)
    return _unconfirmed(found, outcomes, rules)


def windows_expected(rules: Rules, doublings: float = 3.0) -> int:
    """How many windows a search takes when the answer lies `doublings` steps from the start: for estimates of time."""
    halvings = math.ceil(math.log2(max(1.0, math.log(rules.step) / math.log1p(rules.precision))))
    return math.ceil(doublings) + 2 + halvings + 2 * (_majority(rules) - 1)


def _majority(rules: Rules) -> int:
    return rules.repeats // 2 + 1


def judged(seen: Sequence[bool | None]) -> tuple[int, int]:
    """(windows that met the SLO, windows that could be judged)."""
    known = [met for met in seen if met is not None]
    return sum(known), len(known)


def _verdict(seen: Sequence[bool | None]) -> bool | None:
    met, of = judged(seen)
    return None if 2 * met == of else 2 * met > of


def _unconfirmed(found: Bracket, outcomes: Outcomes, rules: Rules) -> float | None:
    for rate in (found.low, found.high):
        if rate is not None:
            met, of = judged(outcomes[rate])
            if max(met, of - met) < _majority(rules):
                return rate
    return None

"""What must not get worse while the primary metric improves: first tokens, worst gaps, failures, and the promised SLO.

A breached guard rejects the candidate, so each is held to the same standard as the gain: all guards of a run together
reject an equal candidate with at most the probability ALPHA (Holm over the guards).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from netgain.deciding.experiment.correction import holm_levels
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, clip_failures
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.statistics import CONFIDENCE, p_above, t_quantile
from netgain.deciding.experiment.tails import Tails
from netgain.measuring.workload.slo import SLO, Metric, Target

GuardState = Literal["held", "not shown", "breached"]
ALPHA = (1.0 - CONFIDENCE) / 2.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much worse a tail may get where no SLO says it: ratio to the baseline, and a slack in seconds always allowed.

    Gaps get more room than first tokens: a verify step that commits one token costs more than a decode step, which is
    the price of the technique and visible in the tail by design.
    """

    ttft_p95_ratio: float = 1.2
    itl_p99_ratio: float = 2.0
    slack_s: float = 0.005


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both arms against its limit. `low` and `high` bound the candidate's (95 %, whole units resampled).

    `p` is the probability of a figure this far beyond the limit if the truth were at the limit, and `level` what it must
    not exceed to count. "breached": it does not. "not shown": the value is above the limit but the data do not prove it,
    or it is unknown. "held": the value is within the limit. Seconds, or a share. `metric` and `quantile`: of a tail's guard.
    """

    name: str
    baseline: float | None
    candidate: float | None
    low: float | None
    high: float | None
    limit: float | None
    basis: str
    p: float
    level: float = ALPHA
    metric: Metric | None = None
    quantile: float | None = None

    @property
    def state(self) -> GuardState:
        if self.candidate is None or self.limit is None:
            return "not shown"
        if self.candidate <= self.limit:
            return "held"
        return "breached" if self.p <= self.level else "not shown"


def judge_guards(
    observations: Sequence[Observation],
    slo: SLO | None,
    limits: Limits,
    tails: Callable[[Metric], Tails],
    baseline: str = BASELINE,
    alpha: float = ALPHA,
) -> tuple[Guard, ...]:
    """All guards: failures first, then the SLO's targets, then relative limits for tails that no target covers.

    `tails` gives the slow ends of both arms by metric; `alpha` is what all guards together may err.
    """
    targets = () if slo is None else slo.targets
    promised = {target.metric for target in targets}
    guards = [_failures(observations, baseline)]
    guards += [_promised(target, tails(target.metric)) for target in targets]
    before = [seen for seen in observations if seen.arm == baseline]
    if "ttft" not in promised:
        guards.append(_relative(tails("ttft"), 0.95, limits.ttft_p95_ratio, limits.slack_s, before))
    if "itl" not in promised:
        guards.append(_relative(tails("itl"), 0.99, limits.itl_p99_ratio, limits.slack_s, before))
    levels = holm_levels([guard.p for guard in guards], alpha)
    return tuple(msgspec.structs.replace(guard, level=level) for guard, level in zip(guards, levels, strict=True))


def _failures(observations: Sequence[Observation], baseline: str) -> Guard:
    """Failures come in bursts (a server that hangs fails a whole block), so blocks with a failure are counted, not requests:
    Fisher's exact test. Any higher share holds back adoption, only a shown one rejects."""
    rates: list[float | None] = []
    table: list[list[int]] = []
    for arm in (baseline, CANDIDATE):
        blocks: dict[int, bool] = {}
        own = [seen for seen in observations if seen.arm == arm]
        for seen in own:
            blocks[seen.block] = blocks.get(seen.block, False) or not seen.record.ok
        failed = sum(blocks.values())
        table.append([failed, len(blocks) - failed])
        rates.append(sum(not seen.record.ok for seen in own) / len(own) if own else None)
    return Guard(
        name="failed share",
        baseline=rates[0],
        candidate=rates[1],
        low=None,
        high=None,
        limit=rates[0],
        basis="no more failures than the baseline",
        p=_fisher(table) if None not in rates else 1.0,
    )


def _fisher(table: Sequence[Sequence[int]]) -> float:
    """Fisher's exact test, one-sided: the chance of so many failures in the second row, had both the same share."""
    (failed, held), (more_failed, more_held) = table
    before, after, every = failed + held, more_failed + more_held, failed + more_failed
    ways = sum(math.comb(after, n) * math.comb(before, every - n) for n in range(more_failed, min(after, every) + 1))
    return ways / math.comb(before + after, every)


def _promised(target: Target, tails: Tails) -> Guard:
    """Where the baseline misses the limit as well, only a candidate that is worse than the baseline breaches it."""
    before = tails.baseline.quantile(target.quantile)
    basis = "SLO" if before is None or before <= target.limit_s else "SLO, which the baseline misses, too"
    return _guard(tails, target.quantile, target.limit_s, basis, None if basis == "SLO" else 0.0)


def _relative(tails: Tails, share: float, ratio: float, slack_s: float, arm: Sequence[Observation]) -> Guard:
    """The limit is never tighter than what the repeats of the baseline, `arm`, differ by: noise is no breach."""
    before = tails.baseline.quantile(share)
    if before is None or not math.isfinite(before):
        return _guard(tails, share, None, "no baseline to compare with", None)
    noise = _repeat_ratio(arm, tails, share)
    limit = max(before * max(ratio, noise), before + slack_s)
    basis = f"{ratio:g} x baseline, or +{slack_s * 1e3:g} ms"
    if noise > ratio:
        basis = f"{noise:.2f} x baseline, by which its own repeats differ"
    return _guard(tails, share, limit, basis, math.log(limit / max(before, 1e-9)))


def _repeat_ratio(arm: Iterable[Observation], tails: Tails, share: float) -> float:
    """The arm's tail over its first blocks against the one over its last, the larger over the smaller; 1 if not repeated."""
    blocks: dict[int, set[int]] = {}
    for seen in arm:
        blocks.setdefault(seen.group, set()).add(seen.block)
    found = [tails.baseline.only([end(own) for own in blocks.values()]).quantile(share) for end in (min, max)]
    known = [tail for tail in found if tail is not None and math.isfinite(tail) and tail > 0.0]
    return max(known) / min(known) if len(known) == len(found) else 1.0


def _guard(tails: Tails, share: float, limit: float | None, basis: str, allowed_log: float | None) -> Guard:
    """`allowed_log`: how far log(candidate / baseline) may go; None compares the candidate alone with its limit."""
    before, after = tails.baseline.quantile(share), tails.candidate.quantile(share)
    spread = tails.log_spread(share)
    low, high, p = None, None, 1.0
    if spread is not None and tails.drawn is not None and after is not None:
        error, freedom = tails.drawn.error(spread[1]), tails.drawn.freedom
        logs = clip_failures(np.log(np.maximum(np.array([before, after], dtype=np.float64), 1e-9)))
        half = t_quantile(CONFIDENCE, freedom) * error
        if math.isfinite(after):
            low, high = after * math.exp(-half), after * math.exp(half)
        if tails.drawn.units >= FEWEST_UNITS and limit is not None:
            beyond = float(logs[1]) - math.log(limit)
            if allowed_log is not None:
                error = tails.drawn.error(spread[1] - spread[0])
                beyond = float(logs[1] - logs[0]) - allowed_log
            p = p_above(beyond, error, freedom)
    return Guard(
        name=f"{tails.metric} p{share * 100:g}",
        baseline=before,
        candidate=after,
        low=low,
        high=high,
        limit=limit,
        basis=basis,
        p=p,
        metric=tails.metric,
        quantile=share,
    )

"""Guards: tails against relative limits or a promised SLO, failures, and what few data cannot show."""

import msgspec

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.guards import Limits, judge_guards
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.tails import Tails
from netgain.measuring.workload.slo import parse_slo


def observed(make_record, baseline, candidate, groups=6):
    found = []
    for group in range(groups):
        for arm, settings in ((BASELINE, baseline), (CANDIDATE, candidate)):
            found.append(Observation(arm=arm, group=group, block=group, record=make_record(f"p{group}", **settings)))
    return found


def judged(observations, slo=None):
    return judge_guards(observations, slo, Limits(), lambda metric: Tails(observations, metric, 0))


def states(guards):
    return {guard.name: guard.state for guard in guards}


def test_equal_arms_hold_every_guard(make_record):
    guards = judged(observed(make_record, {}, {}), None)
    assert states(guards) == {"failed share": "held", "ttft p95": "held", "itl p99": "held"}


def test_a_doubled_first_token_time_breaches(make_record):
    guards = judged(observed(make_record, {"prefill_s": 0.1}, {"prefill_s": 0.2}), None)
    assert states(guards)["ttft p95"] == "breached"


def test_a_slow_token_in_one_group_of_many_is_not_shown(make_record):
    trial = observed(make_record, {}, {}, groups=9)
    trial.append(Observation(arm=CANDIDATE, group=9, block=9, record=make_record("slow", token_s=0.1)))
    assert states(judged(trial, None))["itl p99"] == "not shown"


def test_few_groups_cannot_breach_a_relative_limit(make_record):
    trial = observed(make_record, {"prefill_s": 0.1}, {"prefill_s": 0.2}, groups=4)
    assert states(judged(trial, None))["ttft p95"] == "not shown"


def test_the_baselines_own_spread_widens_the_limit(make_record):
    trial = []
    for group in range(6):
        for block, (arm, prefill_s) in enumerate(
            ((BASELINE, 0.1), (CANDIDATE, 0.18), (CANDIDATE, 0.18), (BASELINE, 0.2))
        ):
            record = make_record(f"p{group}", prefill_s=prefill_s)
            trial.append(Observation(arm=arm, group=group, block=4 * group + block, record=record))
    guard = next(guard for guard in judged(trial, None) if guard.name == "ttft p95")
    assert guard.state == "held"
    assert "repeats differ" in guard.basis


def test_an_slo_replaces_the_relative_limit(make_record):
    trial = observed(make_record, {"token_s": 0.01}, {"token_s": 0.03})
    guards = judged(trial, parse_slo("itl.p99=50ms,e2e=10s"))
    assert states(guards) == {"failed share": "held", "itl p99": "held", "e2e p95": "held", "ttft p95": "held"}
    guards = judged(trial, parse_slo("itl.p99=20ms"))
    assert states(guards)["itl p99"] == "breached"


def test_failures_count_as_infinite(make_record):
    trial = observed(make_record, {}, {"error": "cut"})
    found = states(judged(trial, None))
    assert found["failed share"] == "breached"
    assert found["ttft p95"] == "breached"


def test_a_single_failure_holds_back_and_does_not_reject(make_record):
    """One failed request of many is no proof: with equal arms half of all such runs would be rejected."""
    trial = observed(make_record, {}, {}, groups=9)
    trial.append(Observation(arm=CANDIDATE, group=9, block=9, record=make_record("p9", error="cut")))
    trial.append(Observation(arm=BASELINE, group=9, block=9, record=make_record("p9")))
    assert states(judged(trial))["failed share"] == "not shown"


def test_an_slo_that_both_miss_is_no_fault_of_the_candidate(make_record):
    """It holds back, since the promise is not kept, but only a candidate that is worse is rejected for it."""
    slo = parse_slo("ttft=50ms")
    same = judged(observed(make_record, {}, {}), slo)
    assert states(same)["ttft p95"] == "not shown"
    assert "baseline misses" in next(guard for guard in same if guard.name == "ttft p95").basis
    worse = judged(observed(make_record, {}, {"prefill_s": 0.2}), slo)
    assert states(worse)["ttft p95"] == "breached"


def test_several_guards_share_one_level(make_record):
    guards = judged(observed(make_record, {}, {}), parse_slo("ttft=1s,itl=1s,e2e=9s"))
    assert len(guards) == 4
    assert min(guard.level for guard in guards) <= 0.025 / len(guards) + 1e-12


def test_a_gain_of_answers_without_a_token_is_not_adopted_and_the_reason_is_told(make_trial):
    """No number of such answers would tell the time of a first token, so none is said to decide it."""
    trial = [
        msgspec.structs.replace(
            one,
            record=msgspec.structs.replace(
                one.record, first_token_s=None, first_text_s=None, chunk_times_s=(), chunk_tokens=(), output_tokens=0
            ),
        )
        if one.arm == CANDIDATE
        else one
        for one in make_trial(speedup=2.0)
    ]
    verdict = analyse(trial, Terms(promises_identity=False)).verdict
    assert verdict.decision == "inconclusive"
    assert any("did they hold tokens?" in reason for reason in verdict.reasons)
    assert verdict.needed is None
    assert not any("would decide it" in reason for reason in verdict.reasons)

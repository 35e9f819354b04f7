"""How many requests met the promised service level, before and after, and how sure that is."""

import numpy as np
import pytest

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.slo import slo_outcome
from netgain.measuring.workload.slo import parse_slo

SLO = parse_slo("ttft=150ms")


def seen_of(make_record, slow_before, slow_after, groups=8, prompts=5):
    """Group g's share of slow first tokens in either arm is given by a function of g."""
    found = []
    for group in range(groups):
        for block, (arm, slow) in enumerate(((BASELINE, slow_before), (CANDIDATE, slow_after))):
            for prompt in range(prompts):
                record = make_record(f"p{prompt}", prefill_s=0.2 if prompt < slow(group) else 0.1)
                found.append(Observation(arm=arm, group=group, block=2 * group + block, record=record))
    return found


def test_failures_meet_nothing_and_every_target_must_hold(make_record):
    records = [make_record("a", prefill_s=0.1), make_record("b", prefill_s=0.2), make_record("c", error="cut")]
    seen = [
        Observation(arm=arm, group=0, block=0, record=record) for arm in (BASELINE, CANDIDATE) for record in records
    ]
    found = slo_outcome(seen, SLO)
    assert found.baseline.share == pytest.approx(1 / 3)
    assert (found.gained, found.gained_low) == (0.0, None), "one group tells no interval"
    assert found.text == "ttft.p95=150ms"


def test_nothing_measured_is_unknown():
    found = slo_outcome([], SLO)
    assert (found.baseline, found.candidate, found.gained, found.gained_low) == (None, None, None, None)


def test_the_difference_is_told_with_its_interval(make_record):
    found = slo_outcome(seen_of(make_record, lambda group: 2 + group % 2, lambda group: 1), SLO)
    assert found.baseline.share == pytest.approx(0.5)
    assert found.candidate.share == pytest.approx(0.8)
    assert found.gained_low < 0.3 < found.gained_high
    assert found.gained_low > 0.0


def test_a_share_of_one_is_not_certain(make_record):
    found = slo_outcome(seen_of(make_record, lambda group: 0, lambda group: 0), SLO)
    assert found.candidate.share == found.candidate.high == 1.0
    assert 0.88 < found.candidate.low < 0.95, "of 40 requests"


def test_requests_that_share_their_fate_count_for_less(make_record):
    """Whole blocks are slow or not: eight units, however many requests each holds."""
    together = slo_outcome(seen_of(make_record, lambda group: 5 * (group % 2), lambda group: 0), SLO).baseline
    apart = slo_outcome(seen_of(make_record, lambda group: 2 + group % 2, lambda group: 0), SLO).baseline
    assert together.share == apart.share == 0.5
    assert together.high - together.low > 1.4 * (apart.high - apart.low)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_interval_covers_the_truth(make_record, share):
    generator = np.random.default_rng(7)
    quick, slow = make_record("p", prefill_s=0.1), make_record("p", prefill_s=0.2)
    covered = 0
    for _ in range(100):
        shares = np.clip(share + generator.normal(0.0, 0.05, 12), 0.0, 1.0)  # groups differ
        seen = [
            Observation(arm=arm, group=group, block=group, record=quick if generator.random() < own else slow)
            for group, own in enumerate(shares)
            for arm in (BASELINE, CANDIDATE)
            for _ in range(6)
        ]
        found = slo_outcome(seen, SLO).candidate
        covered += found.low <= share <= found.high
    assert covered >= 90

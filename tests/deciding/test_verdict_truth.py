"""Truth tests of the verdict: experiments whose true effect is known, because it was planted."""

import math

import msgspec
import numpy as np
import pytest

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.next_steps import groups_needed, next_steps
from netgain.deciding.experiment.observation import BASELINE, CONTROL, Pairs
from netgain.deciding.experiment.statistics import Effect, median_effect, noise_floor, sign_flip_p, weighted_medians

TERMS = Terms(promises_identity=True)


def test_a_planted_gain_is_adopted(make_trial):
    analysis = analyse(make_trial(speedup=1.3), TERMS)
    assert analysis.verdict.decision == "adopt"
    assert analysis.e2e_median.low < 1.3 < analysis.e2e_median.high
    assert analysis.verdict.reasons


def test_a_planted_loss_is_rejected(make_trial):
    verdict = analyse(make_trial(speedup=1 / 1.1), TERMS).verdict
    assert verdict.decision == "reject"
    assert "slower" in verdict.reasons[0]


def test_a_gain_too_small_to_matter_is_not_adopted(make_trial):
    decisions = {analyse(make_trial(speedup=1.01, seed=seed), TERMS).verdict.decision for seed in range(20)}
    assert "adopt" not in decisions


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.1])
def test_relabelled_baselines_are_hardly_ever_adopted(make_trial, noise):
    trials = 60
    adopted = sum(
        analyse(make_trial(speedup=1.0, spread=0.05, block_noise=noise, seed=seed), TERMS).verdict.decision == "adopt"
        for seed in range(trials)
    )
    assert adopted <= 0.05 * trials


def test_a_gain_well_above_the_noise_is_nearly_always_found(make_trial):
    trials = 30
    adopted = sum(
        analyse(make_trial(speedup=1.2, block_noise=0.02, seed=seed), TERMS).verdict.decision == "adopt"
        for seed in range(trials)
    )
    assert adopted >= 0.9 * trials


def test_few_groups_are_inconclusive_however_large_the_effect(make_trial):
    for groups in (1, 2, 4, 5):
        verdict = analyse(make_trial(speedup=2.0, groups=groups), TERMS).verdict
        assert verdict.decision == "inconclusive", groups
        assert str(groups) in verdict.reasons[0]


def test_noise_larger_than_the_effect_is_inconclusive(make_trial):
    verdict = analyse(make_trial(speedup=1.05, block_noise=0.15), TERMS).verdict
    assert verdict.decision == "inconclusive"


def test_an_inconclusive_verdict_says_what_to_do_next(make_trial):
    """The quick form, which has no second start of the baseline, leads to the full one; the full one to a quieter machine."""
    quick = analyse(make_trial(speedup=1.08, block_noise=0.06), TERMS).verdict
    assert quick.decision == "inconclusive"
    assert quick.reasons[0].startswith("it may pay or not: the interval (")
    assert "without --quick" in quick.reasons[-1]
    trial = make_trial(speedup=1.08, block_noise=0.06)
    again = [
        msgspec.structs.replace(seen, arm=CONTROL)
        for seen in make_trial(block_noise=0.06, seed=1)
        if seen.arm == BASELINE
    ]
    full = analyse([*trial, *again], TERMS).verdict
    assert (full.decision, full.void) == ("inconclusive", False)
    assert "--quick" not in full.reasons[-1]
    assert "nothing else runs" in full.reasons[-1]


def test_the_groups_that_would_decide_are_told_where_the_interval_tells():
    effect = Effect(ratio=1.2, low=1.0, high=1.44, groups=8, pairs=24, p_faster=0.05, p_slower=0.9)
    needed = groups_needed(effect, math.log(1.1))
    assert needed == 36, "the interval's half width is 2.1 times the distance to the threshold, so 4.4 times the groups"
    told = next_steps(effect, needed, full_form=False, looping=False)
    assert told[0].startswith("about 36 groups of prompts would decide it")
    assert groups_needed(effect, math.log(1.2)) is None, "no number of groups decides where the effect is the threshold"


def test_a_candidate_that_fails_everything_is_rejected(make_trial):
    verdict = analyse(make_trial(candidate_fails=True), TERMS).verdict
    assert verdict.decision == "reject"
    assert "fail" in verdict.reasons[0]


def test_a_baseline_that_fails_everything_proves_nothing(make_trial):
    verdict = analyse(make_trial(baseline_fails=True), TERMS).verdict
    assert (verdict.decision, verdict.void) == ("inconclusive", True)


def test_both_arms_failing_prove_nothing(make_trial):
    verdict = analyse(make_trial(baseline_fails=True, candidate_fails=True), TERMS).verdict
    assert (verdict.decision, verdict.void) == ("inconclusive", True)


def test_no_observations_prove_nothing():
    verdict = analyse([], TERMS).verdict
    assert (verdict.decision, verdict.void) == ("inconclusive", True)


def test_other_tokens_reject_a_technique_that_promised_the_same(make_trial):
    def outputs(arm, prompt):
        return (1, 2, 3 if arm == BASELINE or prompt else 4)

    trial = make_trial(speedup=2.0, outputs=outputs)
    assert analyse(trial, TERMS).verdict.decision == "reject"
    assert analyse(trial, Terms(promises_identity=False)).verdict.decision == "adopt"


def test_a_gain_that_rests_on_looping_text_is_not_adopted(make_trial):
    plain = make_trial(speedup=1.0, groups=6)
    looping = make_trial(speedup=3.0, groups=6, prompts=6, seed=1, outputs=lambda arm, prompt: (7, 8) * 20)
    renamed = []
    for seen in looping:
        record = msgspec.structs.replace(seen.record, item_id="loop-" + seen.record.item_id)
        renamed.append(msgspec.structs.replace(seen, record=record))
    verdict = analyse([*plain, *renamed], TERMS).verdict
    assert verdict.decision == "inconclusive"
    assert "looping" in verdict.reasons[0]
    assert "do not repeat themselves" in verdict.reasons[-1]
    assert verdict.looped.share == pytest.approx(0.6)


def test_intervals_cover_the_planted_effect():
    generator = np.random.default_rng(1)
    covered = 0
    trials, groups, prompts, effect = 400, 8, 4, math.log(1.1)
    members = np.repeat(np.arange(groups), prompts)
    for trial in range(trials):
        size = groups * prompts
        block = np.repeat(generator.normal(0.0, 0.02, groups), prompts)
        gain = effect + block + generator.normal(0.0, 0.05, size)
        base = generator.normal(0.0, 0.5, size)
        pairs = Pairs(
            groups=members,
            log_baseline=base,
            log_candidate=base - gain,
            baseline=np.exp(base),
            candidate=np.exp(base - gain),
            items=tuple(map(str, range(size))),
        )
        found = median_effect(pairs, trial)
        covered += found.low <= 1.1 <= found.high
    assert 0.92 <= covered / trials <= 0.98


def test_the_exact_test_counts_sign_patterns():
    assert sign_flip_p(np.array([1.0, 1.0, 1.0])) == 1 / 8
    assert sign_flip_p(np.array([1.0, 1.0, -1.0])) == 4 / 8
    assert sign_flip_p(np.zeros(3)) == 1.0


def test_weighted_medians_equal_medians_of_repeated_values():
    generator = np.random.default_rng(0)
    values = generator.normal(size=9)
    weights = generator.integers(0, 4, size=(50, 9)).astype(float)
    weights[:, 0] += 1
    for row, found in zip(weights, weighted_medians(values, weights), strict=True):
        assert found == pytest.approx(np.median(np.repeat(values, row.astype(int))))


def test_noise_floor_of_equal_blocks_is_zero_and_needs_two_groups():
    assert noise_floor(np.zeros(6), np.array([0, 0, 1, 1, 2, 2])) == 0.0
    assert noise_floor(np.zeros(2), np.array([0, 0])) is None
    assert noise_floor(np.full(6, 0.1), np.array([0, 0, 1, 1, 2, 2])) == pytest.approx(0.1)

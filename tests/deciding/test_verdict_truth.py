"""Truth tests of the verdict: experiments whose true effect is known, because it was planted."""

import msgspec
import pytest

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.observation import BASELINE, CONTROL

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
def test_equal_arms_are_hardly_ever_adopted_or_rejected(make_trial, noise):
    trials = 40
    decisions = [
        analyse(make_trial(speedup=1.0, spread=0.05, block_noise=noise, seed=seed), TERMS).verdict.decision
        for seed in range(trials)
    ]
    assert decisions.count("adopt") <= 0.05 * trials
    assert decisions.count("reject") <= 0.05 * trials


def test_a_loss_of_half_a_percent_is_inconclusive_however_well_it_is_measured(make_trial):
    """A small loss that is shown is said to be too small to matter; it is no reason to reject."""
    verdict = analyse(make_trial(speedup=1 / 1.005, block_noise=0.0005, request_noise=0.0005), TERMS).verdict
    assert verdict.primary.high < 1.0
    assert (verdict.decision, verdict.finding) == ("inconclusive", "same")
    assert "keep the baseline" in verdict.reasons[0]
    assert len(verdict.reasons) == 1, "more measuring would not help, so it is not advised"


def test_a_claim_across_starts_needs_six_of_them(make_trial):
    within = analyse(make_trial(speedup=1.3, groups=10, starts=5), TERMS).verdict
    assert within.scope.startswith("within these starts")
    assert (within.primary.unit, within.primary.units) == ("group", 10)
    across = analyse(make_trial(speedup=1.3, groups=12, starts=6), TERMS).verdict
    assert across.scope == "across server starts (6 of each arm)"
    assert (across.primary.unit, across.primary.units) == ("start", 6)
    assert across.decision == "adopt"


def test_what_differs_from_start_to_start_widens_the_interval_across_starts(make_trial):
    """ohdearquant/lattice#1137: an equal control showed +8.95 % with a narrow interval taken within one start."""
    trial = make_trial(groups=24, starts=6, start_noise=0.05)
    pretended = [msgspec.structs.replace(seen, start=0) for seen in trial]
    across, within = (analyse(seen, TERMS).e2e_median for seen in (trial, pretended))
    assert across.high / across.low > 1.5 * within.high / within.low - 0.5
    assert across.error > 1.5 * within.error


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
    assert "would decide it" in quick.reasons[1]
    assert quick.needed.units > quick.primary.units
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

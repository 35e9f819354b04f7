"""Several candidates tried for one purpose: truth tests of what they adopt together, and the level of each."""

import msgspec
import numpy as np
import pytest

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.family import Candidate, analyse_family, p_value
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.sweeping import analyse_loads

TERMS = Terms(promises_identity=True)
LOADS = (1, 4)
FAMILIES = 60
MOST_CLAIMED = 7  # at most 5 % may claim a change, 3 of 60; more than 7 are then seen in about one of 100 series
MOST_ADOPTED = 4  # half of that may be adopted; more than 4 are then seen in less than one of 50


def family(trials, terms=TERMS, load_of=None):
    return analyse_family({name: Candidate(observations=seen, terms=terms) for name, seen in trials.items()}, load_of)


def load_of(group):
    return LOADS[group % 2]


def test_more_candidates_are_each_held_to_a_stricter_level(make_trial):
    trials = {f"c{n}": make_trial(speedup=1.05 if n == 0 else 1.0, seed=n, block_noise=0.02) for n in range(8)}
    alone = analyse(trials["c0"], TERMS)
    found = family(trials)["c0"]
    assert found.analysis.verdict.confidence == pytest.approx(1 - 0.05 / 8)
    assert found.analysis.e2e_median.low < alone.e2e_median.low
    assert found.analysis.e2e_median.ratio == alone.e2e_median.ratio
    assert found.place.level == pytest.approx(0.05 / 8)
    assert "one of 8 candidates" in found.analysis.verdict.reasons[-1]


def test_a_single_candidate_is_judged_as_if_there_were_no_families(make_trial):
    trial = make_trial(speedup=1.05, block_noise=0.02)
    found = family({"c": trial})["c"]
    assert found.analysis == analyse(trial, TERMS)
    assert found.place is None
    assert family({"c": trial}, load_of=load_of)["c"].analysis == analyse_loads(trial, load_of, TERMS).analysis


def test_each_candidate_keeps_its_own_terms(make_trial):
    """What is promised differs: of the same answers one candidate breaks its word, and the other was asked for its quality."""
    trial = make_trial(speedup=2.0, outputs=lambda arm, prompt: (1, 2, 3 if arm == BASELINE or prompt else 4))
    lossy = Terms(promises_identity=False, doubts=("quality is not shown",))
    found = analyse_family(
        {
            "identical": Candidate(observations=trial, terms=TERMS),
            "lossy": Candidate(observations=trial, terms=lossy),
            "allowed": Candidate(observations=trial, terms=Terms(promises_identity=False)),
        }
    )
    decisions = {name: one.analysis.verdict.decision for name, one in found.items()}
    assert decisions == {"identical": "reject", "lossy": "inconclusive", "allowed": "adopt"}


@pytest.mark.parametrize("shared", [False, True])
def test_of_equal_candidates_all_together_hardly_ever_claim_or_adopt_anything(make_trial, shared):
    """Five candidates that are equal to the baseline: the correction must hold whether their experiments are independent or share
    most of what disturbs them. Independent ones that were judged each as if alone would fail here."""
    tried, adopted, claimed, claimed_alone = 5, 0, 0, 0
    for number in range(FAMILIES):
        trials = {}
        for n in range(tried):
            seed = 1000 * number + (0 if shared else n)
            trials[f"c{n}"] = make_trial(prompts=2, block_noise=0.02, seed=seed)
            if shared:
                trials[f"c{n}"] = disturbed(trials[f"c{n}"], 1000 * number + n + 1)
        found = family(trials).values()
        adopted += any(one.analysis.verdict.decision == "adopt" for one in found)
        claimed += any(claims(one.analysis) for one in found)
        claimed_alone += not shared and any(claims(analyse(trial, TERMS)) for trial in trials.values())
    assert adopted <= MOST_ADOPTED
    assert claimed <= MOST_CLAIMED
    assert shared or claimed_alone > MOST_CLAIMED


def claims(analysis):
    """Whether a change is said to be shown, to either side."""
    effect = analysis.verdict.primary
    return not effect.low <= 1.0 <= effect.high


def disturbed(trial, seed):
    """The same experiment with a little noise of its own on each request of the candidate."""
    generator = np.random.default_rng(seed)
    found = []
    for seen in trial:
        record = seen.record
        if seen.arm == CANDIDATE:
            longer = float(np.exp(generator.normal(0.0, 0.01)))
            record = msgspec.structs.replace(
                record, finished_s=record.scheduled_s + (record.finished_s - record.scheduled_s) * longer
            )
        found.append(msgspec.structs.replace(seen, record=record))
    return found


def test_a_real_gain_is_found_among_equal_candidates(make_trial):
    """A correction that adopts nothing would pass every test of false claims."""
    right = 0
    for number in range(15):
        trials = {
            f"c{n}": make_trial(speedup=1.2 if n == 0 else 1.0, block_noise=0.02, prompts=2, seed=10 * number + n)
            for n in range(4)
        }
        found = family(trials)
        right += [name for name, one in found.items() if one.analysis.verdict.decision == "adopt"] == ["c0"]
    assert right >= 12


def test_over_several_loads_a_candidate_answers_for_all_of_them(make_trial):
    trial = make_trial(speedup=1.1, groups=12, block_noise=0.02)
    each = [
        p_value(Candidate(observations=[s for s in trial if load_of(s.group) == load], terms=TERMS)) for load in LOADS
    ]
    assert p_value(Candidate(observations=trial, terms=TERMS), load_of) == pytest.approx(2 * min(each))
    found = family({"a": trial, "b": make_trial(groups=12, block_noise=0.02, seed=1)}, load_of=load_of)
    assert found["a"].swept.sweep.each == pytest.approx(1 - 0.025 / 2)
    assert "one of 2 candidates" in found["a"].analysis.verdict.reasons[-1]


def test_a_candidate_without_a_measured_effect_burdens_the_others_and_adopts_nothing(make_trial):
    found = family({"a": make_trial(speedup=1.3), "b": make_trial(candidate_fails=True), "c": []})
    assert found["a"].analysis.verdict.decision == "adopt"
    assert found["c"].place.p == 1.0
    assert found["c"].analysis.verdict.void

"""Two arms that were not asked the same prompts: compared by their medians, each resampled within itself."""

import msgspec
import numpy as np
import pytest

from netgain.deciding.experiment.analyse import Terms, analyse, end_to_end
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.unpaired import mean_effect_apart, median_effect_apart, samples

UNPAIRED = Terms(promises_identity=False, paired=False)


@pytest.fixture
def build(make_record):
    def build(slower: float = 1.0, groups: int = 12, each: int = 4, spread: float = 0.05, seed: int = 0):
        generator = np.random.default_rng(seed)
        found = []
        for at, (arm, pace) in enumerate(((BASELINE, 1.0), (CANDIDATE, slower))):
            for group in range(groups):
                for prompt in range(each):
                    token_s = 0.01 * pace * float(np.exp(generator.normal(0.0, spread)))
                    number = at * groups + group
                    record = make_record(f"{arm}-{group}-{prompt}", prefill_s=10 * token_s, token_s=token_s)
                    found.append(Observation(arm=arm, start=at, group=number, block=number, record=record))
        return found

    return build


def test_a_planted_difference_is_found_and_an_equal_candidate_is_not(build):
    slow = analyse(build(slower=1.25), UNPAIRED).verdict
    assert (slow.decision, slow.finding) == ("reject", "slower")
    assert "prompts not paired" in slow.headline
    assert slow.primary.low < 1 / 1.25 < slow.primary.high
    assert analyse(build(), UNPAIRED).verdict.finding in ("same", "unclear")


def test_the_interval_covers_the_truth_about_as_often_as_it_says(build):
    found = [median_effect_apart(samples(build(spread=0.2, seed=seed), end_to_end), 0) for seed in range(120)]
    covered = sum(effect.low <= 1.0 <= effect.high for effect in found)
    assert 0.88 <= covered / len(found) <= 0.995
    means = [mean_effect_apart(samples(build(spread=0.2, seed=seed), end_to_end), 0) for seed in range(60)]
    assert sum(effect.low <= 1.0 <= effect.high for effect in means) >= 52


def test_pairing_by_prompt_narrows_the_interval(build):
    apart = build(spread=0.3)
    shared = [
        msgspec.structs.replace(
            seen, start=0, group=seen.group % 12, record=msgspec.structs.replace(seen.record, item_id=f"p{place % 48}")
        )
        for place, seen in enumerate(apart[:48])
    ]
    again = [msgspec.structs.replace(seen, arm=CANDIDATE) for seen in shared]
    paired = analyse([*shared, *again], Terms(promises_identity=False)).e2e_median
    unpaired = analyse(apart, UNPAIRED).e2e_median
    assert paired.high - paired.low < (unpaired.high - unpaired.low) / 4


def test_a_doubt_withholds_adoption_and_is_the_reason_given(build):
    doubted = msgspec.structs.replace(UNPAIRED, doubts=("they were measured on different days",))
    assert analyse(build(slower=0.7), UNPAIRED).verdict.decision == "adopt"
    verdict = analyse(build(slower=0.7), doubted).verdict
    assert (verdict.decision, verdict.finding) == ("inconclusive", "faster")
    assert verdict.reasons == doubted.doubts
    assert analyse(build(slower=1.4), doubted).verdict.decision == "reject"


def test_an_arm_without_an_answer_gives_no_effect(build):
    only = [seen for seen in build() if seen.arm == BASELINE]
    assert median_effect_apart(samples(only, end_to_end), 0) is None
    assert analyse(only, UNPAIRED).verdict.void

"""A small form of the truth tests: the noise of real equal servers, and verdicts that must be right about it."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks._recording import join, load, save
from netgain.deciding.decide.settings import FULL
from netgain.deciding.experiment.analyse import analyse
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import CANDIDATE

EXPERIMENTS = 48  # enough to see a broken judge; the limits themselves take the slow test's number


@pytest.fixture(scope="module")
def quiet():
    return load(verdicts.RECORDINGS / "equal-servers-quiet.npz")


def test_equal_servers_are_hardly_ever_adopted_or_rejected_and_a_real_effect_is_found(quiet):
    """'Always inconclusive' would fail this as surely as 'always adopt'."""
    found = verdicts.measure(quiet, EXPERIMENTS)
    assert found["false_adopt_rate"] <= 0.1
    assert found["false_reject_rate"] <= 0.1
    assert found["power_at_5_percent"] >= 0.8
    assert found["loss_found_at_5_percent"] >= 0.8
    assert found["half_percent_inconclusive"] >= 0.8
    assert found["coverage_95"] >= 0.8
    assert found["cpu_s_per_verdict"] < 1.0


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", [verdicts.QUIET, verdicts.BUSY])
def test_verdicts_keep_their_limits_over_the_experiments_of_the_benchmark(name):
    """A thousand of each recording, as the benchmark has them; each gives two intervals (equal and planted arms), so the share
    of intervals that hold the truth has a standard error of half a percent."""
    found = verdicts.measure(load(verdicts.RECORDINGS / f"equal-servers-{name}.npz"), verdicts.EXPERIMENTS // 2)
    assert verdicts.missed(found) == ()


def deciding(decision):
    """A judge that has measured as well as ours, and decides the same whatever it sees."""

    def judge(observations, terms):
        found = analyse(observations, terms)
        return msgspec.structs.replace(found, verdict=msgspec.structs.replace(found.verdict, decision=decision))

    return judge


@pytest.mark.parametrize(
    ("decision", "missing"), [("inconclusive", "power_at_5_percent"), ("adopt", "false_adopt_rate")]
)
def test_a_judge_that_always_decides_the_same_fails_the_limits(quiet, decision, missing):
    assert missing in verdicts.missed(verdicts.measure(quiet, 4, judge=deciding(decision)))


def test_the_limits_are_bounds_on_both_sides():
    kept = {"false_adopt_rate": 0.006, "coverage_95": 0.944, "power_at_5_percent": 0.924}
    assert verdicts.missed(kept) == ()
    assert verdicts.missed({**kept, "coverage_95": 0.99}) == ("coverage_95",)
    assert verdicts.missed({**kept, "false_adopt_rate": 0.06}) == ("false_adopt_rate",)


def test_an_experiment_starts_either_server_first_in_turns_and_repeats_no_round(quiet):
    drawn = verdicts.draw(quiet, quiet.rounds, np.random.default_rng(0))
    starts = len({seen.start for seen in drawn})
    assert starts in range(FULL.starts, FULL.most_starts + 1, 2), "it grows as the design does"
    assert {seen.start for seen in drawn} == set(range(starts))
    origins = {seen.start: seen.record for seen in drawn if seen.arm == CANDIDATE}
    place = {id(seen.record): (number, seen.arm) for number, part in enumerate(quiet.rounds) for seen in part}
    rounds = [place[id(origins[start])][0] for start in range(starts)]
    assert len(set(rounds)) == starts
    assert len({place[id(origins[start])][1] for start in range(0, starts, 2)}) == 1
    assert place[id(origins[0])][1] != place[id(origins[1])][1]
    assert len({seen.block for seen in drawn}) == sum(quiet.size(number)[1] for number in rounds)


def test_a_planted_effect_scales_all_times(quiet):
    plain = quiet.rounds[0][0]
    faster = verdicts.scaled(plain, 1.25).record
    assert faster.e2e_s == pytest.approx(plain.record.e2e_s / 1.25)
    assert faster.ttft_s == pytest.approx(plain.record.ttft_s / 1.25)
    assert faster.tpot_s == pytest.approx(plain.record.tpot_s / 1.25)


def test_a_recording_is_read_back_to_a_hundredth_of_a_millisecond(make_trial_of, tmp_path: Path):
    save(tmp_path / "r.npz", [make_trial_of(3), make_trial_of(4)], {"cpu": "some"})
    found = load(tmp_path / "r.npz")
    assert found.context["cpu"] == "some"
    assert [found.size(number) for number in range(2)] == [(3, 12), (4, 16)]
    for seen, kept in zip(make_trial_of(3).observations, found.rounds[0], strict=True):
        assert (seen.arm, seen.group, seen.block) == (kept.arm, kept.group, kept.block)
        assert kept.record.e2e_s == pytest.approx(seen.record.e2e_s, abs=1e-3)
        assert kept.record.token_gaps()[0][0] == pytest.approx(seen.record.token_gaps()[0][0], abs=2e-5)


def test_recordings_are_joined_with_the_contexts_of_all(make_trial_of, tmp_path: Path):
    parts = [tmp_path / "a.npz", tmp_path / "b.npz"]
    save(parts[0], [make_trial_of(3)], {"cpu": "some"})
    save(parts[1], [make_trial_of(3), make_trial_of(3)], {"cpu": "another"})
    join(tmp_path / "all.npz", parts)
    join(tmp_path / "more.npz", [tmp_path / "all.npz", parts[0]])
    found, first, second = (load(path) for path in (tmp_path / "more.npz", *parts))
    assert found.rounds == (*first.rounds, *second.rounds, *first.rounds)
    assert [part["cpu"] for part in found.context["parts"]] == ["some", "another", "some"]


def test_recordings_of_different_designs_are_not_joined(make_trial_of, tmp_path: Path):
    for groups in (3, 4):
        save(tmp_path / f"{groups}.npz", [make_trial_of(groups)], {})
    with pytest.raises(ValueError, match="rounds of 2 designs"):
        join(tmp_path / "all.npz", [tmp_path / "3.npz", tmp_path / "4.npz"])


@pytest.fixture
def make_trial_of(quiet):
    def build(groups: int) -> Trial:
        return Trial(observations=tuple(seen for seen in quiet.rounds[0] if seen.group < groups), blocks=())

    return build


def test_the_worst_recording_is_what_is_reported():
    good = dict.fromkeys(("false_adopt_rate", "false_reject_rate"), 0.01)
    good |= {"coverage_95": 0.95, "power_at_5_percent": 0.9, "loss_found_at_5_percent": 0.9}
    good |= {"half_percent_inconclusive": 1.0}
    bad = {"false_reject_rate": 0.04, "coverage_95": 0.97, "power_at_5_percent": 0.8, "loss_found_at_5_percent": 0.7}
    found = verdicts.summary({"quiet": good, "busy": {**good, **bad}})
    assert {name: found[name] for name in bad} == bad
    assert math.isclose(found["busy_coverage_95"], 0.97)

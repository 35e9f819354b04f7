"""A small form of the truth tests: the noise of real equal servers, and verdicts that must be right about it."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks._control import checked, with_control
from benchmarks._recording import join, load, save
from netgain.deciding.decide.settings import FULL
from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.measuring.workload.item import Item

EXPERIMENTS = 48  # enough to see a broken judge; the limits themselves take the slow test's number


@pytest.fixture(scope="module")
def quiet():
    return load(verdicts.RECORDINGS / "equal-servers-quiet.npz")


def test_equal_servers_are_hardly_ever_adopted_or_rejected_and_a_real_effect_is_found(quiet):
    """'Always inconclusive' would fail this as surely as 'always adopt'."""
    found = verdicts.measure(quiet, EXPERIMENTS)
    assert found["false_adopt_rate"] <= 0.1
    assert found["false_reject_rate"] <= 0.1
    assert found["power_at_5_percent"] >= 0.65, "0.84 of a thousand; of these few it may be three standard errors less"
    assert found["loss_found_at_5_percent"] >= 0.5
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

    def judge(observations, terms, checks):
        found = analyse(observations, terms, checks)
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
    control = 2 * math.ceil(FULL.groups / FULL.control_every)
    assert len({seen.block for seen in drawn}) == sum(quiet.size(number)[1] + control for number in rounds)


def test_an_experiment_has_the_blocks_and_the_order_of_the_full_form(quiet):
    """It was judged without the control that the full form has, which voids runs in which it shows an effect."""
    drawn = verdicts.draw(quiet, quiet.rounds, np.random.default_rng(0))
    one = [seen for seen in drawn if seen.start == 0]
    items = [[seen for seen in one if seen.group == group] for group in range(FULL.groups)]
    dealt = tuple(tuple(Item(id=name, category="c", max_tokens=1, prompt="p") for name in names(own)) for own in items)
    design = Design(groups=dealt, concurrency=1, control_every=FULL.control_every)
    blocks = {seen.block: (seen.group, seen.arm) for seen in one}
    expected = [(group, arm) for group in range(FULL.groups) for arm in design.order(group)]
    assert [blocks[at] for at in sorted(blocks)] == expected


def names(seen):
    return sorted({one.record.item_id for one in seen})


def test_the_control_differs_from_the_baseline_as_recorded_servers_do(quiet):
    found = [
        verdicts.analyse(drawn, Terms(promises_identity=True)) for drawn in (draws(quiet, seed) for seed in range(24))
    ]
    control = [math.log(one.control.ratio) for one in found]
    primary = [math.log(one.e2e_median.ratio) for one in found]
    assert 0.5 <= np.std(control) / np.std(primary) <= 4.0


def test_a_control_shares_with_the_baseline_what_the_candidate_shares_with_it(quiet):
    """Beside a round whose servers do not differ at all, it lies half way between both."""
    own, alike = quiet.rounds[0], [seen for seen in quiet.rounds[1] if seen.arm == BASELINE]
    alike += [msgspec.structs.replace(seen, arm=CANDIDATE) for seen in alike]
    made = [seen for seen in with_control(own, alike, 4, verdicts.scaled) if seen.arm == CONTROL]
    item = made[0].record.item_id
    first = {
        arm: next(one for one in own if one.arm == arm and one.group == 0 and one.record.item_id == item)
        for arm in (BASELINE, CANDIDATE)
    }
    assert {one.group for one in made} == {0, 4, 8}
    assert math.log(made[0].record.e2e_s) == pytest.approx(
        sum(math.log(one.record.e2e_s) for one in first.values()) / 2, abs=1e-6
    )


def draws(recording, seed):
    return verdicts.draw(recording, recording.rounds, np.random.default_rng(seed))


def test_a_control_that_shows_an_effect_voids_the_experiment(quiet):
    drawn = draws(quiet, 0)
    slowed = [verdicts.scaled(seen, 1 / 1.3) if seen.arm == CONTROL else seen for seen in drawn]
    verdict = analyse(slowed, Terms(promises_identity=True), checked(slowed)).verdict
    assert verdict.void
    assert "the baseline against itself as a third arm" in verdict.reasons[0]


def test_a_client_that_was_late_voids_the_experiment(quiet):
    drawn = draws(quiet, 0)
    assert not [check for check in checked(drawn) if check.ok is False]
    late = [
        msgspec.structs.replace(seen, record=msgspec.structs.replace(seen.record, sent_s=seen.record.scheduled_s + 0.2))
        for seen in drawn
    ]
    assert [check.name for check in checked(late) if check.ok is False] == ["client"]


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

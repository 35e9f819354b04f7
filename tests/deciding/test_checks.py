"""Validity: what voids a run, and what is only said."""

import msgspec

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.decide.server import join
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL, Observation
from netgain.measuring.workload.item import Item

BLOCK = Block(
    index=0,
    group=0,
    repeat=0,
    arm=BASELINE,
    started_s=0.0,
    finished_s=2.0,
    idle_cpu={CANDIDATE: 0.001},
    foreign_cpu=0.0,
    lateness_p99_s=0.0001,
    client_void=None,
    output_tokens=10,
)


def checks(blocks=(BLOCK,) * 10, observations=()):
    return {check.name: check for check in check_trial(Trial(observations=tuple(observations), blocks=tuple(blocks)))}


def seen(make_record, arm, cached):
    return Observation(arm=arm, group=0, block=0, record=make_record(cached=cached))


def test_a_quiet_run_is_valid(make_record):
    found = checks(observations=[seen(make_record, BASELINE, 0), seen(make_record, CANDIDATE, 0)])
    assert [check.ok for check in found.values()] == [True] * 4


def test_an_idle_arm_that_works_voids(make_record):
    busy = msgspec.structs.replace(BLOCK, idle_cpu={CANDIDATE: 0.05})
    assert checks([busy] * 4)["idle arm"].ok is False
    assert checks([busy, *[BLOCK] * 9])["idle arm"].ok is True  # 0.6 % over the whole run
    assert checks([msgspec.structs.replace(BLOCK, idle_cpu={})])["idle arm"].ok is None


def test_one_over_budget_block_is_said_and_many_void():
    over = msgspec.structs.replace(BLOCK, client_void="the client's event-loop lag was 60 ms")
    one = checks([over, *[BLOCK] * 19])["client"]
    assert one.ok is True
    assert "1 of 20 blocks" in one.says
    assert checks([over] * 3 + [BLOCK] * 7)["client"].ok is False


def test_other_cached_tokens_in_one_arm_void(make_record):
    found = checks(observations=[seen(make_record, BASELINE, 0), seen(make_record, CANDIDATE, 16)])
    assert found["cache state"].ok is False
    assert checks()["cache state"].ok is None


def test_where_reuse_is_tested_what_arms_find_is_the_effect_and_voids_nothing(make_record):
    both = (seen(make_record, BASELINE, 0), seen(make_record, CANDIDATE, 16))
    trial = Trial(observations=both, blocks=(BLOCK,) * 10)
    found = {check.name: check for check in check_trial(trial, reuses=True)}["cache state"]
    assert found.ok is None
    assert "0.0% in the baseline" in found.says
    assert "in the candidate" in found.says


def test_cached_tokens_of_prompts_that_were_answered_once_tell_nothing(make_record):
    once = tuple(seen(make_record, arm, cached) for arm, cached in ((BASELINE, 0), (CANDIDATE, 16)))
    found = {check.name: check for check in check_trial(Trial(observations=once, blocks=(BLOCK,)), same_cache=False)}
    assert found["cache state"].ok is None
    assert "no prompt was answered twice" in found["cache state"].says


def test_other_work_on_the_machine_is_said_and_never_voids():
    loud = msgspec.structs.replace(BLOCK, foreign_cpu=1.5)
    assert checks([loud])["other work on the machine"].ok is None
    assert "1.50 cores" in checks([loud])["other work on the machine"].says


def items(count):
    return [Item(id=f"i{n}", category="c", max_tokens=4, prompt="x") for n in range(count)]


def test_groups_are_dealt_in_turns_and_never_hold_a_prompt_twice():
    groups = grouped(items(6), 2, 3)
    assert [[item.id for item in group] for group in groups] == [["i0", "i2", "i4"], ["i1", "i3", "i5"]]
    for group in grouped(items(5), 4, 3):
        assert len({item.id for item in group}) == 3
    assert all(len(group) == 2 for group in grouped(items(2), 3, 5))


def test_the_order_is_mirrored_so_that_linear_drift_cancels_and_no_arm_is_always_first():
    plain = Design(groups=grouped(items(2), 2, 1), concurrency=1)
    assert plain.order(0) == (BASELINE, CANDIDATE, CANDIDATE, BASELINE)
    assert plain.order(1) == (CANDIDATE, BASELINE, BASELINE, CANDIDATE)
    assert plain.blocks == plain.requests == 8


def test_groups_are_spread_over_starts_and_each_start_has_its_control():
    full = Design(groups=grouped(items(6), 6, 1), concurrency=1, starts=2, control_every=3)
    assert [full.start_of(group) for group in range(6)] == [0, 0, 0, 1, 1, 1]
    assert full.order(0) == (BASELINE, CANDIDATE, CONTROL, CONTROL, CANDIDATE, BASELINE)
    assert [group for group in range(6) if CONTROL in full.order(group)] == [0, 3]
    assert full.blocks == 4 * 6 + 2 * 2


def test_joined_step_costs_keep_the_less_disturbed_measurements():
    def curve(*seconds):
        return StepCost(
            points=tuple(StepPoint(batch=1, tokens=n + 1, context=0, seconds=value) for n, value in enumerate(seconds))
        )

    joined = join([curve(0.010, 0.012), curve(0.011), curve(0.030, 0.040), curve(0.010, 0.012), curve(0.050)])
    assert joined.verify(1, 1, 0).seconds == 0.010
    assert joined.verify(1, 2, 0).seconds == 0.012
    assert joined.points[0].repeats == 5

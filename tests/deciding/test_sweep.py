"""Up to which load does it pay: one design over several loads, intervals that hold together, and the crossover located."""

import math
from collections import Counter

import msgspec
import numpy as np
import pytest

from netgain.deciding.decide.settings import FULL, QUICK, Settings, parse_loads
from netgain.deciding.decide.sweeping import sizes
from netgain.deciding.experiment.analyse import Terms
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL, Pairs, pair_values
from netgain.deciding.experiment.statistics import median_effect
from netgain.deciding.experiment.sweep import each_confidence, find_crossover
from netgain.deciding.experiment.sweeping import analyse_loads, expected_s, sweep_design
from netgain.errors import UsageError
from netgain.measuring.workload.item import Item, Message

LOADS = (1, 2, 4, 8, 16)
TERMS = Terms(promises_identity=True)


def items_of(count: int) -> list[Item]:
    return [
        Item(id=f"p{n}", category="c", messages=(Message(role="user", content=f"{n}"),), max_tokens=8)
        for n in range(count)
    ]


def pairs_of(gains, generator, starts=6, groups=2, prompts=2, start_noise=0.02, noise=0.02) -> dict[int, Pairs]:
    """Pairs at each load; `gains` maps a load to its true log speedup. What a start does, it does to all loads."""
    paces = generator.normal(0.0, start_noise, starts)
    found = {}
    for number, (load, gain) in enumerate(gains.items()):
        baseline, candidate, at = {}, {}, {}
        for start in range(starts):
            for turn in range(groups):
                group = (start * groups + turn) * len(gains) + number
                at[group] = start
                for prompt in range(prompts):
                    key = (group, f"p{prompt}")
                    baseline[key] = [1.0]
                    candidate[key] = [math.exp(-gain - paces[start] + generator.normal(0.0, noise))]
        found[load] = pair_values(baseline, candidate, at)
    return found


def trial_of(make_trial, speedups, **more):
    """One trial over all loads, its groups in turns; returns it with the load of each group."""
    found, load_of = [], {}
    for number, (load, speedup) in enumerate(speedups.items()):
        for seen in make_trial(speedup=speedup, groups=12, starts=6, prompts=2, seed=number, **more):
            group = seen.group * len(speedups) + number
            load_of[group] = load
            found.append(msgspec.structs.replace(seen, group=group, block=seen.block * len(speedups) + number))
    return found, load_of.__getitem__


def test_loads_share_starts_and_take_turns():
    design = sweep_design(items_of(40), LOADS, starts=6, groups=12, control_every=4)
    placed = Counter((design.start_of(group), design.load_of(group)) for group in range(len(design.groups)))
    assert set(placed.values()) == {2}, "every load has as many groups in every start"
    assert len({design.loads[start * 10] for start in range(5)}) == 5, "each start begins with another load"
    for group, items in enumerate(design.groups):
        assert len(items) == max(2, 2 * design.load_of(group))


def test_each_load_begins_as_often_with_either_arm():
    for starts, groups in ((6, 12), (6, 5), (2, 6)):
        design = sweep_design(items_of(40), (1, 2, 4, 8), starts=starts, groups=groups, control_every=None)
        begins = Counter((design.load_of(group), design.order(group)[0]) for group in range(len(design.groups)))
        for load in (1, 2, 4, 8):
            assert abs(begins[load, BASELINE] - begins[load, CANDIDATE]) <= 2, (starts, groups)


def test_even_the_quick_form_can_decide_at_every_load():
    design = sweep_design(items_of(40), LOADS, QUICK.starts, QUICK.groups, QUICK.control_every)
    assert min(Counter(design.loads).values()) >= 6


def test_a_load_that_the_prompts_cannot_keep_busy_is_refused():
    with pytest.raises(UsageError, match="15 prompts cannot keep 16 requests in flight"):
        sweep_design(items_of(15), LOADS, 6, 12, None)


def test_the_time_that_it_takes_is_known_before():
    design = sweep_design(items_of(40), (1, 4), starts=1, groups=12, control_every=None)
    assert expected_s(design, lambda load: 1.0) == pytest.approx(6 * 4 * (2 / 1 + 8 / 4))
    assert sizes(design) == "2 to 8 prompts"


def test_it_pays_up_to_a_load_and_the_flip_is_located(make_trial):
    speedups = {1: 1.5, 2: 1.3, 4: 1.12, 8: 0.9, 16: 0.7}
    found = analyse_loads(*trial_of(make_trial, speedups), TERMS, predicted={1: 1.45})
    sweep = found.sweep
    assert [point.decision for point in sweep.points] == ["adopt", "adopt", "adopt", "reject", "reject"]
    assert (sweep.pays_up_to, sweep.pays_from) == (4, None)
    assert sweep.says.startswith("It pays up to 4 concurrent requests; at 8 it is slower (-")
    crossing = sweep.crossover
    assert (crossing.turn, crossing.below, crossing.above) == ("ends", 4, 8)
    assert 4.0 < crossing.low < crossing.at < crossing.high < 8.0
    verdict = found.analysis.verdict
    assert verdict.decision == "adopt"
    assert verdict.headline == sweep.says
    assert found.analysis.rollback.most_in_flight == crossing.at
    assert len(found.analysis.rollback.paces) == 3, "one threshold for each load at which it pays"
    assert sweep.points[0].predicted == 1.45
    assert sweep.points[1].predicted is None


def test_a_load_at_which_it_was_not_shown_to_pay_is_beyond_the_rule_wherever_the_sign_flips(make_trial):
    found = analyse_loads(*trial_of(make_trial, {1: 1.5, 4: 1.4, 8: 1.01, 16: 0.8}), TERMS)
    assert found.sweep.pays_up_to == 4
    assert found.sweep.crossover.below == 8
    assert found.analysis.rollback.most_in_flight == pytest.approx(math.sqrt(4 * 8))


def test_it_may_pay_at_high_loads_only(make_trial):
    found = analyse_loads(*trial_of(make_trial, {1: 0.8, 4: 1.2, 16: 1.4}), TERMS)
    assert found.sweep.pays_from == 4
    assert found.sweep.says.startswith(
        "It pays from 4 concurrent requests on, up to the 16 tried; at 1 it is slower (-"
    )
    assert found.sweep.crossover.turn == "begins"
    assert found.analysis.rollback.most_in_flight is None


def test_other_tokens_at_one_load_break_the_promise_at_all(make_trial):
    trial, load_of = trial_of(make_trial, {1: 1.5, 4: 1.4})

    def changed(seen):
        if load_of(seen.group) == 1 or seen.arm != CANDIDATE:
            return seen
        server = msgspec.structs.replace(seen.record.server, output_ids=(7, 7, 7))
        return msgspec.structs.replace(seen, record=msgspec.structs.replace(seen.record, server=server))

    verdict = analyse_loads([changed(seen) for seen in trial], load_of, TERMS).analysis.verdict
    assert verdict.decision == "reject"
    assert "promises identical tokens" in verdict.headline
    assert "4 in flight" in verdict.headline


def test_the_rule_for_going_back_allows_the_tails_of_every_load_at_which_it_pays(make_trial):
    """First tokens are later at high load in both arms, which is no reason to go back."""
    trial, load_of = trial_of(make_trial, {1: 1.5, 4: 1.4})

    def slower(seen):
        if load_of(seen.group) == 1:
            return seen
        later = {name: getattr(seen.record, name) + 0.9 for name in ("first_token_s", "first_text_s", "finished_s")}
        times = tuple(at + 0.9 for at in seen.record.chunk_times_s)
        return msgspec.structs.replace(seen, record=msgspec.structs.replace(seen.record, chunk_times_s=times, **later))

    rule = analyse_loads([slower(seen) for seen in trial], load_of, TERMS).analysis.rollback
    (first,) = [tail for tail in rule.tails if tail.metric == "ttft"]
    assert first.limit_s > 1.0


def test_what_pays_everywhere_has_no_crossover_within_the_loads(make_trial):
    found = analyse_loads(*trial_of(make_trial, {1: 1.5, 4: 1.4, 16: 1.3}), TERMS)
    assert found.sweep.says == "It pays at every load tried, 1 to 16 concurrent requests"
    assert found.sweep.crossover is None
    assert found.sweep.crossover_says == "the crossover is not within the loads tried (1 to 16)"
    assert found.analysis.rollback.most_in_flight is None, "nothing was measured beyond, which is no reason to go back"


def test_what_pays_nowhere_is_rejected(make_trial):
    found = analyse_loads(*trial_of(make_trial, {1: 0.8, 4: 0.8, 16: 0.8}), TERMS)
    assert found.analysis.verdict.decision == "reject"
    assert found.sweep.says == "It pays at no load tried, 1 to 16 concurrent requests"


def test_a_control_that_shows_an_effect_voids_all_loads(make_trial):
    trial, load_of = trial_of(make_trial, {1: 1.5, 4: 1.5})
    again = [
        msgspec.structs.replace(seen, arm=CONTROL)
        for seen in trial
        if seen.arm == CANDIDATE  # a second start of the baseline that is 1.5 times as fast
    ]
    verdict = analyse_loads([*trial, *again], load_of, TERMS).analysis.verdict
    assert (verdict.decision, verdict.void) == ("inconclusive", True)


def test_intervals_of_all_loads_hold_the_truth_together():
    generator = np.random.default_rng(3)
    each, missed, trials = each_confidence(len(LOADS)), 0, 400
    for _ in range(trials):
        pairs = pairs_of(dict.fromkeys(LOADS, 0.1), generator)
        effects = [median_effect(found, 0, each) for found in pairs.values()]
        missed += not all(effect.low <= math.exp(0.1) <= effect.high for effect in effects)
    assert missed <= 0.07 * trials


def test_the_interval_of_the_crossover_holds_the_truth():
    """The true curve falls in proportion to the logarithm of the load and is zero at 6 in flight."""
    generator = np.random.default_rng(5)
    held = trials = 0
    for _ in range(160):
        gains = {load: 0.1 * (math.log(6.0) - math.log(load)) for load in LOADS}
        crossing, _ = find_crossover(pairs_of(gains, generator), 0.95, 0)
        if crossing is not None:
            trials += 1
            held += (crossing.low or 0.0) <= 6.0 <= (crossing.high or math.inf)
    assert trials > 130
    assert held / trials >= 0.9


def test_a_sign_that_flips_twice_has_no_single_crossover():
    generator = np.random.default_rng(0)
    crossing, told = find_crossover(pairs_of({1: 0.2, 2: -0.2, 4: 0.2}, generator), 0.95, 0)
    assert crossing is None
    assert "flips 2 times" in told


def test_loads_are_read_as_people_write_them():
    assert parse_loads("8") == (8,)
    assert parse_loads("4, 1,2,2") == (1, 2, 4)
    for wrong, told in (
        ("", "no whole number"),
        ("1,two", "no whole number"),
        ("0,1", "at least 1"),
        ("1.5", "no whole"),
    ):
        with pytest.raises(UsageError, match=told):
            parse_loads(wrong)
    with pytest.raises(UsageError, match="too many"):
        parse_loads(",".join(map(str, range(1, 20))))


def test_settings_refuse_loads_that_do_not_ascend(tmp_path):
    with pytest.raises(UsageError, match="ascending"):
        Settings(output=tmp_path, concurrency=4, loads=(4, 2))


def test_the_full_form_has_a_claim_across_starts_at_every_load():
    design = sweep_design(items_of(40), LOADS, FULL.starts, FULL.groups, FULL.control_every)
    for load in LOADS:
        assert (
            len({design.start_of(group) for group in range(len(design.groups)) if design.load_of(group) == load}) == 6
        )


def test_a_test_of_nothing_is_no_sweep():
    with pytest.raises(UsageError, match="no load was measured"):
        analyse_loads([], lambda group: 1, TERMS)

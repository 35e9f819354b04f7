"""Each step says gain, loss or cannot tell, and says where it was not what its title promises."""

import pytest

from netgain.deciding.kv.judging import judge
from tests.deciding.kv.conftest import reuse


def words(steps) -> dict[str, list[str]]:
    return {step.name: [claim.word for claim in step.claims] for step in steps}


def test_a_tier_that_costs_nothing_and_loads_quickly_is_a_gain_where_it_is_warm_and_nowhere_else(trial):
    found = words(judge(trial(), 0))
    assert found["warm-dram"] == found["warm-disk"] == ["gain"]
    assert found["saturated"] == ["gain", "gain"]
    assert found["off"] == ["cannot tell"]
    assert found["cold"] == ["cannot tell", "cannot tell"]


def test_an_overhead_of_a_tenth_is_a_loss_in_words(trial):
    cold = judge(trial(cold=1.1), 0)[1]
    assert [claim.word for claim in cold.claims] == ["loss", "loss"]
    assert "a loss, the first token took" in cold.claims[0].says
    assert "longer" in cold.claims[0].says


def test_a_hit_that_is_slower_than_computing_is_a_loss(trial):
    found = {step.name: step for step in judge(trial(warm=1.5), 0)}
    assert found["warm-dram"].claims[0].word == "loss"
    assert found["warm-dram"].roles[1].hits.token_rate > 0.9
    assert found["saturated"].regret.best == "recompute"


def test_regret_is_of_the_better_choice(trial):
    regret = judge(trial(policy=1.2), 0)[-1].regret
    assert regret.best == "load"
    assert regret.regret == pytest.approx(0.2, abs=0.03)
    assert regret.low < regret.regret < regret.high
    assert "regret of" in regret.says


def test_one_prompt_gives_no_interval_and_therefore_no_word(trial):
    whole = trial()
    first = {seen.step: seen.group for seen in reversed(whole.seen)}
    few = trial(seen=tuple(seen for seen in whole.seen if seen.group == first[seen.step]))
    claim = judge(few, 0)[2].claims[0]
    assert claim.word == "cannot tell"
    assert claim.mean.low is None
    assert "no interval" in claim.says


def test_a_step_that_is_not_warm_says_so(trial, seen):
    whole = trial()
    on_device = tuple(
        seen(one.step, one.role, one.group, 0.04, repeat=one.repeat, cached=384, kv=reuse(loaded_tokens=0))
        if (one.step, one.role) == ("warm-dram", "dram")
        else one
        for one in whole.seen
    )
    step = judge(trial(seen=on_device), 0)[2]
    assert any("still on the device" in note for note in step.notes)
    assert any("only 0.0% of the tokens came from the tier" in note for note in step.notes)


def test_other_tokens_for_the_same_prompt_are_counted(trial, seen):
    whole = trial()
    wrong = tuple(
        seen(one.step, one.role, one.group, 0.04, repeat=one.repeat, output=(9,))
        if (one.step, one.role, one.group) == ("cold", "dram", 4)
        else one
        for one in whole.seen
    )
    step = judge(trial(seen=wrong), 0)[1]
    assert (step.compared, step.differing) == (16, 1)

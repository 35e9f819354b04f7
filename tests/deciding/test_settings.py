"""Forms fit their time without losing what the statistics need; settings that cannot be meant are refused."""

from pathlib import Path

import msgspec
import pytest

from netgain.deciding.decide.prompts import cannot_show, prepare_items
from netgain.deciding.decide.settings import FULL, QUICK, Settings
from netgain.deciding.experiment.arms.hooks import hooks_from
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.technique.tier_asked import parse_tier
from netgain.errors import UsageError
from netgain.measuring.workload.load import load_workload

OUT = Path("unused")
HOOKS = hooks_from({"start": "a", "stop": "b", "engine": "vllm"}, "hooks.yaml")


def test_a_fast_machine_gets_the_whole_quick_form():
    assert QUICK.fitted(0.5, 1) == QUICK


def test_a_slow_machine_gets_smaller_groups_then_fewer():
    slow = QUICK.fitted(1.5, 1)
    assert (slow.groups, slow.group_size) == (QUICK.groups, 1)
    slower = QUICK.fitted(2.0, 1)
    assert (slower.groups, slower.group_size) == (5, 1)
    slowest = QUICK.fitted(20.0, 1)
    assert (slowest.starts * slowest.groups, slowest.group_size) == (FEWEST_UNITS, 1)


def test_a_named_technique_that_gains_by_reuse_keeps_its_prompts_on_a_slow_machine():
    """Three prompts a start, each of another document, showed no load, and the documented command tried nothing."""
    form = Settings(output=OUT, quick=True, techniques=("kv-tiers",)).form
    assert form.fitted(20.0, 1) == form
    assert (form.groups, form.group_size, form.recording_s) == (QUICK.groups, QUICK.group_size, None)
    assert Settings(output=OUT, quick=True, techniques=("ngram",)).form.recording_s == QUICK.recording_s


def test_a_candidate_is_tried_without_what_is_about_another(tmp_path):
    """A folder or a store that belongs to the tiers would be emptied at every start of a server that has none."""
    asked = Settings(
        output=tmp_path,
        engine="vllm",
        model="m",
        techniques=("ngram", "kv-tiers"),
        tier=parse_tier("lmcache:4GiB"),
        tier_reset="true",
    )
    ngram, tiers = asked.of("ngram"), asked.of("kv-tiers")
    assert (ngram.tier, ngram.tier_reset, ngram.output) == (None, None, tmp_path / "ngram")
    assert (tiers.tier, tiers.tier_reset, tiers.output) == (asked.tier, "true", tmp_path / "kv-tiers")
    assert msgspec.structs.replace(asked, candidates=1).of("ngram").output == tmp_path


def test_the_full_form_takes_as_long_as_it_takes():
    assert FULL.fitted(60.0, 1) == FULL


def test_the_full_form_makes_a_claim_across_starts():
    assert FULL.starts >= FEWEST_UNITS
    assert FULL.blocks == FULL.starts * (4 * FULL.groups + 2 * 3)
    assert QUICK.starts == 2, "either arm is started first once"


def test_groups_keep_the_load_up():
    assert Settings(output=OUT, concurrency=8).form.group_size == 16
    assert Settings(output=OUT, concurrency=8, quick=True).form.fitted(30.0, 8).group_size == 8


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"temperature": 3.0}, "temperature is 3.0"),
        ({"minimum_effect": 0.0}, "minimum effect is 0.0"),
        ({"output_tokens": 1}, "no decode"),
        ({"hooks": HOOKS, "starting": Starting(devices=4)}, "in the hooks' file"),
        ({"hooks": HOOKS, "starting": Starting(environment={"A": "1"})}, "in the hooks' file"),
        ({"hooks": HOOKS}, "say that vllm serves"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong, said):
    with pytest.raises(UsageError, match=said):
        Settings(output=OUT, **wrong)


def test_prompts_are_capped_and_seeded_the_same_every_time():
    workload = load_workload("edit")
    settings = Settings(output=OUT, quick=True, temperature=0.7, seed=3)
    first, again = prepare_items(workload, settings), prepare_items(workload, settings)
    assert first == again
    assert len(first) == QUICK.starts * QUICK.groups * QUICK.group_size
    assert all(item.max_tokens <= 64 and item.temperature == 0.7 and item.seed is not None for item in first)
    assert len({item.seed for item in first}) == len(first)
    other = prepare_items(workload, Settings(output=OUT, quick=True, seed=4))
    assert other[0].seed != first[0].seed


def test_the_quick_form_says_what_it_cannot_show():
    settings = Settings(output=OUT, quick=True)
    items = prepare_items(load_workload("edit"), settings)
    told = " ".join(cannot_show(settings, QUICK.starts, items, {item.id for item in items[:5]}))
    for part in ("started twice", "cut at 64 tokens", f"{len(items) - 5} of {len(items)} prompts", "closed loop"):
        assert part in told
    full = " ".join(cannot_show(Settings(output=OUT), FULL.starts, items, {item.id for item in items}))
    assert "Differences between server starts" not in full
    cheaper = " ".join(cannot_show(Settings(output=OUT), 3, items, {item.id for item in items}))
    assert "started 3 times" in cheaper, "a budget took starts"

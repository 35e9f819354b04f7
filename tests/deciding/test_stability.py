"""Drift, outliers and influence are said and void nothing."""

import msgspec
import pytest

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE

TERMS = Terms(promises_identity=True)


def named(analysis):
    return {check.name: check for check in analysis.verdict.checks}


def slower(seen, factor):
    record = seen.record
    longer = record.scheduled_s + (record.finished_s - record.scheduled_s) * factor
    return msgspec.structs.replace(seen, record=msgspec.structs.replace(record, finished_s=longer))


def test_a_calm_run_has_nothing_to_say(make_trial):
    found = named(analyse(make_trial(groups=12), TERMS))
    assert [found[name].ok for name in ("drift", "outliers", "influence")] == [True, True, True]


def test_an_effect_that_grows_during_the_run_is_told(make_trial):
    trial = [slower(seen, 1.0 - 0.02 * seen.group) if seen.arm == CANDIDATE else seen for seen in make_trial(groups=12)]
    drift = named(analyse(trial, TERMS))["drift"]
    assert drift.ok is None
    assert "grew during the run" in drift.says


def test_a_machine_that_slows_down_is_told_and_cancels(make_trial):
    trial = [slower(seen, 1.01**seen.block) for seen in make_trial(groups=12)]
    analysis = analyse(trial, TERMS)
    assert "the baseline itself changed by +" in named(analysis)["drift"].says
    assert analysis.e2e_median.ratio == pytest.approx(1.0, abs=0.01)


def test_a_disturbed_block_is_counted_and_kept(make_trial):
    trial = [slower(seen, 2.0) if seen.block == 5 else seen for seen in make_trial(groups=12)]
    outliers = named(analyse(trial, TERMS))["outliers"]
    assert outliers.ok is None
    assert outliers.value >= 1
    assert "are kept" in outliers.says


def test_a_direction_that_rests_on_one_unit_is_told(make_trial):
    """With an even number of pairs on both sides of 1 the median turns with any of one side, but no interval excludes 1."""
    analysis = analyse(make_trial(speedup=1.2, groups=8), TERMS)
    influence = named(analysis)["influence"]
    assert influence.ok is True
    assert "with any one group left out the speedup is 1.1" in influence.says or "1.2" in influence.says


def test_few_groups_cannot_be_checked(make_trial):
    found = named(analyse(make_trial(groups=1, prompts=1), TERMS))
    assert [found[name].ok for name in ("drift", "outliers", "influence")] == [None, None, None]
    assert all(seen.arm in (BASELINE, CANDIDATE) for seen in make_trial(groups=1))

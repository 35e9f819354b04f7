"""What each candidate has of a budget that several share: an even part of what is left, and at least what can decide."""

from types import SimpleNamespace

import msgspec
import pytest

from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.shares import next_share, shared_budget
from netgain.deciding.experiment.design import Design

DESIGN = Design(groups=((),) * 6, concurrency=1, starts=6)
PREPARED = SimpleNamespace(design=DESIGN, chosen=("a", "b", "c"), base=SimpleNamespace(budget=None))


def settings(tmp_path, budget_s):
    return Settings(output=tmp_path, candidates=3, budget_s=budget_s)


def tried(spent_s):
    """An experiment over all starts that took so many device-seconds."""
    blocks = [SimpleNamespace(start=n // 4, group=n // 4) for n in range(24)]
    return SimpleNamespace(spent_s=spent_s, trial=SimpleNamespace(blocks=blocks))


def test_without_a_budget_each_takes_what_it_takes(tmp_path):
    share = next_share(PREPARED, settings(tmp_path, None), [], 3)
    assert share.budget_s is None
    assert share.confidence == pytest.approx(1 - 0.05 / 3)
    assert shared_budget(settings(tmp_path, None), PREPARED, []) is None


def test_what_one_leaves_the_others_share(tmp_path):
    asked = settings(tmp_path, 300.0)
    assert next_share(PREPARED, asked, [], 3).budget_s == 100.0
    second = next_share(PREPARED, asked, [tried(40.0)], 2)
    assert second.budget_s == 130.0
    assert second.planned.shared_by == 3


def test_the_next_has_at_least_what_can_decide(tmp_path):
    """The first took 140 of 300: an even part of the rest, 80, would decide nothing of what takes 140."""
    share = next_share(PREPARED, settings(tmp_path, 300.0), [tried(140.0)], 2)
    assert share.budget_s == pytest.approx(140.0)


def test_one_for_which_too_little_is_left_is_not_tried_and_is_told_why(tmp_path):
    asked = settings(tmp_path, 300.0)
    why = next_share(PREPARED, asked, [tried(150.0), tried(140.0)], 1)
    assert "too little was left" in why
    found = shared_budget(asked, PREPARED, [tried(150.0), tried(140.0)])
    assert (found.spent_s, found.exceeded) == (290.0, False)
    assert shared_budget(asked, PREPARED, [tried(301.0)]).exceeded


def test_the_account_that_was_planned_is_kept(tmp_path):
    planned = next_share(PREPARED, settings(tmp_path, 300.0), [], 3).planned
    prepared = SimpleNamespace(
        design=DESIGN,
        chosen=PREPARED.chosen,
        base=SimpleNamespace(budget=msgspec.structs.replace(planned, expected_s=9.0)),
    )
    asked = settings(tmp_path, 300.0)
    assert next_share(prepared, asked, [], 3).planned.expected_s == 9.0
    assert shared_budget(asked, prepared, []).expected_s == 27.0

"""A budget that is exceeded, or ends the run, is told of in terminal, report and verdict: what was planned, what was run, what
that loses."""

import io

import msgspec
import pytest
from rich.console import Console

from netgain.deciding.decide.planning import plan
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.conduct import Asking, conduct
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.spending import BudgetAccount, Spending, amount, extent_of, newly_lost
from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.markdown import verdict_markdown
from netgain.deciding.report.terminal import print_summary
from netgain.deciding.report.write import write_report
from netgain.deciding.verdict.store import read_verdict
from netgain.measuring.client.options import Options
from netgain.measuring.workload.item import Item
from tests.deciding.test_budget import RECORDED
from tests.deciding.test_conduct import arms
from tests.deciding.test_report import outcome_of, trial_of

__all__ = ["arms"]  # a fixture

ITEMS = tuple(Item(id=f"p{n}", category="c", prompt=f"{n}", max_tokens=8) for n in range(24))
START_S = 30.0


def design_of(groups: int = 12, **fields) -> Design:
    return Design(groups=grouped(ITEMS, groups, 2), concurrency=1, **fields)


def block_of(index: int, group: int, start: int, seconds: float = 1.0) -> Block:
    return Block(
        index=index,
        group=group,
        repeat=0,
        arm="baseline",
        started_s=0.0,
        finished_s=seconds,
        idle_cpu={},
        foreign_cpu=None,
        lateness_p99_s=None,
        client_void=None,
        output_tokens=None,
        start=start,
    )


def measured(design: Design, budget_s: float, group_s: float, grown_to: int | None = None) -> BudgetAccount:
    """The account of servers on which a group takes `group_s` and all arms START_S to start, with one device in all."""
    now = 0.0
    spending = Spending(design, budget_s, 1, START_S, clock=lambda: now)
    blocks: list[Block] = []
    for group in range(len(design.groups)):
        start = design.start_of(group)
        if start >= (grown_to or design.fewest.starts) or not spending.affords(group):
            break
        now += group_s + (START_S if group and start > design.start_of(group - 1) else 0.0)
        blocks += [block_of(len(blocks) + turn, group, start) for turn in range(4)]
    planned = extent_of(design.fewest)
    before = BudgetAccount(asked_s=budget_s, devices=1, whole=planned, planned=planned, expected_s=budget_s)
    found = spending.account(before, blocks, grown_to)
    assert found is not None
    return found


def test_a_budget_that_suffices_is_kept_and_loses_nothing():
    found = measured(design_of(), 200.0, 10.0)
    assert not found.exceeded
    assert found.run == found.planned == found.whole
    assert found.spent_s == 150.0
    assert found.lost == ()
    (said,) = found.says
    assert said.startswith("The budget of ")
    assert "was kept" in said


@pytest.mark.parametrize("group_s", [12.0, 15.0, 20.0])
def test_within_one_start_groups_are_left_out_that_would_exceed_the_budget(group_s):
    found = measured(design_of(), 170.0, group_s)
    assert not found.exceeded
    assert 6 <= found.run.groups < 12
    assert found.spent_s <= 170.0 < found.spent_s + group_s + START_S
    assert f"ended after {found.run.groups} groups in 1 start of 12 in 1, so intervals are wider" in found.lost[0]
    assert "would have exceeded the budget" in " ".join(found.says)


def test_what_can_decide_anything_is_measured_whatever_it_takes():
    found = measured(design_of(), 60.0, 100.0)
    assert found.exceeded
    assert found.run.groups == 6
    assert "was exceeded: the experiment took" in found.says[0]


def test_starts_are_measured_whole_or_not_at_all():
    """Six starts of 70 s were expected to fit; they take 150 s each."""
    found = measured(design_of(starts=6, groups=24), 6 * 70.0, 30.0)
    assert (found.run.starts, found.run.groups) == (2, 8)
    assert found.spent_s == 300.0
    assert "the verdict holds within these starts only" in found.lost[0]


def test_a_design_that_grew_ends_when_the_budget_does():
    """What it was to grow to is what it is held against; the starts that were planned are there."""
    design = design_of(starts=10, groups=40, enough_after=6)
    found = measured(design, 8 * 70.0, 10.0, grown_to=10)
    assert found.planned.starts == 6
    assert found.run.starts == 8
    assert "ended after 32 groups in 8 starts of 40 in 10" in found.lost[0]
    assert "these starts only" not in found.lost[0]


def test_no_load_of_several_is_left_without_enough_to_decide():
    loads = (1, 4) * 12
    found = measured(design_of(starts=4, groups=24, loads=loads), 10.0, 10.0)
    assert (found.run.starts, found.exceeded) == (2, True)
    assert min(loads[: found.run.groups].count(load) for load in (1, 4)) == 6


def test_what_an_earlier_run_measured_counts_and_is_not_cut():
    kept = [block_of(n, n // 4, 0, seconds=20.0) for n in range(32)]
    spending = Spending(design_of(), 700.0, 2, START_S, kept, clock=lambda: 0.0)
    assert spending.spent_s == 2 * (32 * 20.0 + 2 * START_S), "its servers were started, and are again"
    assert not spending.affords(8)
    found = spending.account(None, kept, None)
    assert found.exceeded, "the budget is the new one"
    assert found.expected_s is None
    assert newly_lost(None, found) == found.lost != ()


async def test_an_experiment_ends_before_the_group_that_it_cannot_afford(arms):
    plan_ = design_of()
    asked: list[int] = []

    def affords(group: int) -> bool:
        asked.append(group)
        return group < 7

    trial = await conduct(arms, plan_, Asking(model="m", options=Options(server_record=True)), "salt", affords=affords)
    assert asked == list(range(8))
    assert len({block.group for block in trial.blocks}) == 7
    assert not trial.stopped, "nobody interrupted it"


def test_a_plan_says_what_it_would_be_without_the_budget(tmp_path):
    whole = plan(Settings(output=tmp_path), ITEMS, RECORDED, None, 10.0)
    assert whole.budget is None
    budget_s = 0.4 * 3600.0 * whole.estimate.device_hours
    found = plan(Settings(output=tmp_path, budget_s=budget_s), ITEMS, RECORDED, None, 10.0).budget
    assert found.whole == extent_of(whole.design.fewest)
    assert found.planned.starts < found.whole.starts
    assert found.expected_s <= budget_s == found.asked_s
    assert found.lost


@pytest.fixture
def over(make_record):
    """An outcome whose plan was cut to fit, and which then took longer all the same."""
    whole, planned = design_of(starts=6, groups=48), design_of(groups=7)
    before = BudgetAccount(
        asked_s=60.0,
        devices=2,
        whole=extent_of(whole),
        planned=extent_of(planned),
        expected_s=50.0,
        lost=("Budget: 1 server start in place of 6, so the verdict holds within these starts only.",),
    )
    trial = trial_of(make_record)
    spending = Spending(planned, 60.0, 2, START_S, clock=iter((0.0, *[70.0] * 9)).__next__)
    return msgspec.structs.replace(outcome_of(trial), budget=spending.account(before, trial.blocks, None))


def shown(outcome) -> str:
    text = io.StringIO()
    print_summary(outcome, Console(file=text, width=400, no_color=True))
    return text.getvalue()


def test_terminal_page_pull_request_and_verdict_tell_of_a_budget_that_was_exceeded(over, tmp_path):
    document = document_of(over)
    for told in (shown(over), verdict_markdown(document), render_html(over)):
        assert "The budget of 0.017 device-hours was exceeded: the experiment took 0.056 device-hours" in told
        assert "1 start, 7 groups, 28 blocks" in told, "what was planned within it, and run"
        assert "6 starts, 48 groups, 192 blocks" in told, "what the form is without it"
        assert "the verdict holds within these starts only" in told
    write_report(over, tmp_path)
    kept = read_verdict(tmp_path / "verdict.json").design.budget
    assert kept == over.budget
    assert (kept.exceeded, kept.spent_s, kept.asked_s) == (True, 200.0, 60.0)


def test_without_a_budget_nothing_is_said_of_one(make_record):
    outcome = outcome_of(trial_of(make_record))
    assert document_of(outcome).design.budget is None
    for told in (shown(outcome), verdict_markdown(document_of(outcome)), render_html(outcome)):
        assert "The budget" not in told
        assert "### Budget" not in told


def test_a_large_budget_is_told_in_digits() -> None:
    assert amount(120 * 3600.0, 2) == "120 device-hours"
    assert amount(60_000.0, None) == "1,000 min"
    assert amount(90.0, None) == "1.5 min"

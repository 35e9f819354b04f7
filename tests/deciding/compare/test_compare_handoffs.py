"""What handoffs cost either side of a comparison: told by counters where there are some, else unknown and why, never 0."""

import asyncio
import io

import pytest
from rich.console import Console

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.handoffs import told_handoffs
from netgain.deciding.compare.page import render_comparison
from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.compare.show import show
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.report.handoffs import handoff_notes, handoff_rows
from netgain.deciding.report.markdown import verdict_markdown
from netgain.deciding.verdict.document import HandoffCost
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.measure import measure
from netgain.measuring.observe.handoffs import Handoffs
from tests.deciding.compare.paced_arm import paced_arm
from tests.deciding.compare.paced_server import paced_server

CARD = '{"weights": "a", "dtype": "bf16", "memory_bytes": 1073741824}'


def shown(outcome):
    console = Console(record=True, width=200, file=io.StringIO())
    show(outcome, console)
    return console.export_text(), verdict_markdown(document_of(outcome)), render_comparison(outcome)


def test_two_running_servers_that_tell_are_told_of_and_one_without_any_had_none(settings):
    with (
        paced_server(owner="netgain", card=CARD) as url,
        paced_server(owner="netgain", card=CARD, handoffs=3) as drafting,
    ):
        outcome = compare(settings(url, drafting, promises_identity=True), Silence())
    requests = sum(arm.requests for arm in outcome.arms if arm.name == CANDIDATE)
    document = document_of(outcome)
    assert document.handoffs_unknown == {}
    (cost,) = document.handoffs
    assert (cost.arm, cost.kind, cost.bytes) == (CANDIDATE, "draft_verify", None)
    assert cost.handoffs == cost.wasted_tokens == 3 * requests, "of the measured requests alone"
    for text in shown(outcome):
        assert f"{3 * requests}" in text
        assert "There was no handoff in the baseline" in text


def test_an_engine_that_tells_none_is_unknown_and_why_and_never_0(settings):
    with paced_server(owner="netgain", card='{"device": "cpu"}', handoffs=2) as url, paced_server() as other:
        overrides = tuple(f"{field}=only the handoffs count here" for field in ("device", "weights", "dtype"))
        outcome = compare(settings(url, other, overrides=overrides), Silence())
    document = document_of(outcome)
    assert {cost.arm for cost in document.handoffs} == {BASELINE}
    assert document.handoffs_unknown == {CANDIDATE: "vllm tells no handoffs but of drafts, and counted none"}
    for text in shown(outcome):
        assert (
            "Of the candidate it is unknown what handoffs cost: vllm tells no handoffs but of drafts, and counted none"
            in text
        )
    (_, row) = handoff_rows(document.handoffs, document.handoffs_unknown)
    assert row[:3] == ("draft verify", CANDIDATE, "unknown")


def test_one_server_on_both_sides_is_not_told_apart(settings):
    with paced_server(owner="netgain", card=CARD, handoffs=1) as url:
        outcome = compare(settings(url, url, control=True), Silence())
    assert outcome.handoffs is None
    assert all("do not tell these apart" in why for why in outcome.handoffs_unknown.values())
    assert set(outcome.handoffs_unknown) == {BASELINE, CANDIDATE}


@pytest.mark.usefixtures("leaves_no_process")
def test_arms_that_are_started_are_counted_over_all_their_starts(settings):
    arms = (paced_arm(owner="netgain", card=CARD, most=2, handoffs=count, token_s=0.002) for count in (0, 1))
    outcome = compare(settings(*arms, promises_identity=True), Silence())
    assert {block.start for block in outcome.blocks} == {0, 1}
    (cost,) = outcome.handoffs
    assert (cost.arm, cost.handoffs) == (CANDIDATE, sum(arm.requests for arm in outcome.arms if arm.name == CANDIDATE))


def test_results_tell_what_their_files_hold(tmp_path, settings):
    workload = settings("http://a:1", "http://b:1").workload
    folders = {}
    for name, options in (("with", {"owner": "netgain", "card": CARD, "handoffs": 2}), ("vllm", {})):
        with paced_server(**options) as url:
            for metrics in (None, "none"):
                folders[name, metrics] = tmp_path / f"{name}-{metrics}"
                ask = Ask(url=url, workload=workload, metrics=metrics)
                asyncio.run(measure(ask, folders[name, metrics], Silence()))

    def handoffs(*sides, **fields):
        asked = [SideAsked(sources=(str(folders[side]),)) for side in sides]
        outcome = compare(Settings(output=tmp_path / "out", baseline=asked[0], candidate=asked[1], **fields), Silence())
        return outcome.handoffs, outcome.handoffs_unknown

    accepted = tuple(f"{field}=only the handoffs count here" for field in ("weights", "dtype"))
    costs, unknown = handoffs(("with", None), ("vllm", None), overrides=accepted)
    assert [(cost.arm, cost.handoffs) for cost in costs] == [(BASELINE, 2 * 24)]
    assert unknown == {CANDIDATE: "vllm tells no handoffs but of drafts, and counted none"}
    costs, unknown = handoffs(("with", "none"), ("vllm", "none"))
    assert costs is None
    assert "none of the server's own counters" in unknown[BASELINE]


def test_a_run_that_is_judged_by_other_requests_than_were_counted_tells_nothing():
    told = Handoffs(kinds={"kv_tier": {"handoffs": 4.0}})
    trial = Trial(observations=(), blocks=(), handoffs={BASELINE: told, CANDIDATE: told})
    urls = {BASELINE: "http://a", CANDIDATE: "http://b"}
    assert told_handoffs(trial, {}, urls) == {BASELINE: told, CANDIDATE: told}
    stopped = told_handoffs(Trial(observations=(), blocks=(), handoffs=trial.handoffs, stopped=True), {}, urls)
    assert all("not judged" in one.unknown for one in stopped.values())
    shared = told_handoffs(trial, {}, {**urls, CONTROL: "http://a"})
    assert shared[CANDIDATE] == told
    assert "apart" in shared[BASELINE].unknown


def test_figures_that_are_not_told_are_unknown_and_a_verdict_from_before_says_nothing_of_them():
    costs = (HandoffCost(arm=BASELINE, kind="kv_tier", handoffs=2.0, bytes=3 * 2.0**20, busy_s=0.5),)
    (row, other) = handoff_rows(costs, {})
    assert row[2:] == ("2", "unknown", "3 MiB", "unknown", "unknown", "unknown", "unknown", "500 ms", "unknown")
    assert other[2] == "none"
    assert len(list(handoff_notes(None, {}))) == 2

"""The report of a comparison: self-contained, escaped, and the same verdict as a document that netgain reads again."""

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.judging import Way, judge_sides
from netgain.deciding.compare.outcome import Asked, Comparison, Side
from netgain.deciding.compare.page import render_comparison
from netgain.deciding.compare.rule import overrides_of, rule
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.compare.show import show
from netgain.deciding.compare.traits import DECLARABLE, Trait
from netgain.deciding.compare.write import write_comparison
from netgain.deciding.decide.quality import Judged
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.quality_gate import QualityGate
from netgain.deciding.report.markdown import verdict_markdown
from netgain.deciding.report.outcome import arm_report
from netgain.deciding.verdict.store import read_verdict
from tests.deciding.test_report_timeline import TWO_STARTS

HELD = Judged(measured=None, gate=QualityGate(state="pass", says="quality holds: all of it", findings=()))


@pytest.fixture
def build(make_trial, tmp_path: Path):
    def build(kind="equal resources", quality=HELD, slo=None, **trial):
        observations = make_trial(groups=12, **trial)
        settings = Settings(
            output=tmp_path,
            baseline=SideAsked(sources=("http://a:1",)),
            candidate=SideAsked(sources=("http://b:1",)),
            kind=kind,
            slo=slo,
        )
        devices = 2 if kind == "scaling" else 1
        before = {"model": Trait("<m>", "server"), "dtype": Trait("bf16", "server"), "devices": Trait(1, "declared")}
        after = {**before, "dtype": Trait("q4_1", "server"), "devices": Trait(devices, "declared")}
        ruling = rule(before, after, kind, overrides_of(["dtype=<b>judged</b> elsewhere"]), DECLARABLE)
        judged = judge_sides(observations, (), ruling, settings, Way(advice="again", quality=quality))
        return Comparison(
            created="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            kind=kind,
            same_server=False,
            paired=True,
            asked=Asked(
                workload="chat",
                workload_digest=None,
                prompts=48,
                load="closed loop, 1 request in flight",
                concurrency=1,
                output_tokens_at_most=None,
                ignore_eos=False,
                temperature=0.0,
                seed=0,
                slo=slo,
                minimum_effect=0.03,
                promises_identity=False,
                form="full",
            ),
            sides={
                name: Side(where=(f"http://{name}:1",), model="<m>", engine="vllm", version=None, told={"a": name})
                for name in (BASELINE, CANDIDATE)
            },
            fields=ruling.rows,
            overrides={row.field: row.reason for row in ruling.rows if row.reason is not None},
            analysis=judged.analysis,
            scaling=judged.scaling,
            lengths=judged.lengths,
            arms=tuple(arm_report(name, (), observations, (), None) for name in (BASELINE, CANDIDATE)),
            blocks=(),
            cache_state=None,
            caveats=(*ruling.caveats, *judged.caveats),
            cannot_show=("other loads",),
            context={"netgain": "1"},
            quality=judged.quality,
            lossy=judged.lossy,
        )

    return build


def test_the_page_is_self_contained_and_escaped(build):
    page = render_comparison(build(speedup=1.3))
    assert "<b>judged</b>" not in page
    assert "&lt;b&gt;judged&lt;/b&gt; elsewhere" in page
    assert "http" not in page.replace("http://baseline:1", "").replace("http://candidate:1", "")
    assert page.count("<svg") >= 4
    assert "bf16" in page
    assert "q4_1" in page


def test_the_verdict_is_a_document_with_the_override_among_its_caveats(build, tmp_path):
    outcome = build(speedup=1.3)
    assert write_comparison(outcome, tmp_path / "out") == tmp_path / "out/report.html"
    document = read_verdict(tmp_path / "out")
    assert document.decision == "adopt"
    assert document.resources == "equal resources"
    assert document.differing == ("dtype (bf16 against q4_1)",)
    assert any("judged" in caveat.says for caveat in document.caveats)
    assert (document.technique.kind, document.quality.state) == ("lossy", "held")
    told = json.loads((tmp_path / "out/comparison.json").read_text())
    assert told["overrides"] == {"dtype": "<b>judged</b> elsewhere"}
    text = (tmp_path / "out/report.md").read_text()
    assert text.startswith("## ADOPT: http&#58;//candidate:1 against http&#58;//baseline:1\n")
    assert "&lt;b&gt;judged&lt;/b&gt; elsewhere" in text
    assert "<b>" not in text


def test_quality_that_was_not_measured_holds_back_adoption_and_one_that_was_is_shown(build):
    console = Console(record=True, width=100, file=io.StringIO())
    unmeasured = build(speedup=1.3, quality=None)
    assert unmeasured.analysis.verdict.decision == "inconclusive"
    assert "<h2>Quality</h2>" not in render_comparison(unmeasured)
    measured = build(speedup=1.3)
    show(measured, console)
    assert "quality holds: all of it" in console.export_text()
    assert "Quality holds: all of it" in render_comparison(measured)


def test_a_scaling_comparison_is_shown_as_one_and_adopts_nothing(build):
    outcome = build(kind="scaling", speedup=1.6)
    console = Console(record=True, width=100, file=io.StringIO())
    show(outcome, console)
    text = console.export_text()
    assert "SCALING" in text
    assert "of linear" in text
    assert "ADOPT" not in text
    assert "output tokens/s per device" in text
    assert outcome.analysis.verdict.decision == "inconclusive"
    assert "SCALING" in render_comparison(outcome)
    assert verdict_markdown(document_of(outcome), word=outcome.word).startswith("## SCALING: ")


def test_a_slower_candidate_with_more_devices_is_not_rejected_either(build):
    outcome = build(kind="scaling", speedup=0.7)
    assert outcome.analysis.verdict.decision == "inconclusive"
    assert outcome.scaling.efficiency < 0.5
    assert msgspec.json.encode(outcome)


def test_blocks_in_time_and_the_slo_that_was_given_are_drawn(build):
    plain = build(speedup=1.3)
    assert "<h2>Timeline</h2>" not in render_comparison(plain), "results have no blocks"
    assert "How tight an SLO could be kept" not in render_comparison(plain), "none was given"
    page = render_comparison(msgspec.structs.replace(build(speedup=1.3, slo="ttft=150ms"), blocks=TWO_STARTS))
    assert "<h2>Timeline</h2>" in page
    assert "servers started again: 15.0 s" in page
    assert "ttft.p95=150ms when all limits are scaled together" in page

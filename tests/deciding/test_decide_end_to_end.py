"""The main job on the embedded model, as a user runs it: minutes, so not among the fast tests."""

import msgspec
import pytest

from netgain.deciding.decide.loop import decide
from netgain.deciding.decide.settings import Settings
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.report.write import write_report


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loop_measures_predicts_tries_judges_and_cleans_up(tmp_path, leaves_no_process):
    outcome = decide(Settings(output=tmp_path, quick=True, output_tokens=24))
    analysis = outcome.analysis
    assert analysis is not None, outcome.stopped
    assert outcome.bottleneck.cannot_conclude
    assert not analysis.verdict.identity.differing
    assert analysis.verdict.identity.compared >= 6
    fall = analysis.waterfall
    assert fall.net_ns == sum(fall.saved_ns.values()) + fall.residual_ns
    assert all(score.predicted is not None for score in outcome.scores)
    path = write_report(outcome, tmp_path)
    assert msgspec.json.decode((path.parent / "decision.json").read_bytes(), type=Outcome).chosen in ("ngram", "suffix")
    assert (tmp_path / "records.jsonl").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_lossy_technique_is_held_to_its_quality_on_its_own_workload(tmp_path, leaves_no_process):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "sum", "prompt": "2 + 2 =", "expected": 4, "max_tokens": 4}\n')
    outcome = decide(
        Settings(
            output=tmp_path, quick=True, output_tokens=8, techniques=("kv-int8",), tasks=str(tasks), workload="chat"
        )
    )
    assert outcome.analysis is not None, outcome.stopped
    assert outcome.quality is not None
    assert outcome.quality.perplexity.state == outcome.quality.divergence.state == "held"
    assert outcome.quality.state == outcome.quality.tasks[0].state == "not shown"  # one task shows nothing
    assert outcome.analysis.verdict.decision != "adopt"

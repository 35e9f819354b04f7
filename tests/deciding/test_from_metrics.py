"""Stages of engines that send no account with their answers: what their metrics tell, and no more. The metrics are those that
vLLM 0.32.0 and llama.cpp 0.5.0-dev wrote; SGLang's is written after its source at d315eb725044 (metrics_collector.py)."""

from pathlib import Path

import msgspec
import pytest

from netgain.deciding.diagnose.bottleneck import find_bottleneck
from netgain.deciding.diagnose.from_metrics import decompose_by_metrics
from netgain.deciding.technique.facts import Facts
from netgain.errors import UsageError
from netgain.ledger.stage import ClientStage, Stage
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.names import engine_of, figures
from netgain.measuring.observe.scrape import Observed
from netgain.measuring.observe.window import observed

SAMPLES = Path(__file__).parents[1] / "measuring/observe/samples"
SGLANG = """# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_bucket{{le="1.0"}} {count}
sglang:queue_time_seconds_bucket{{le="+Inf"}} {count}
sglang:queue_time_seconds_count {count}
sglang:queue_time_seconds_sum {seconds}
"""


def seen(before, after):
    snapshots = [read_exposition(text, at) for at, text in enumerate((before, after))]
    window = observed(snapshots)
    engine = engine_of(set(snapshots[1].families))
    return Observed(url="http://x", engine=engine, window=window, figures=figures(window, engine) if engine else {})


def sample(name):
    return seen(*((SAMPLES / f"{name}-{when}.txt").read_text() for when in ("before", "after")))


def records(make_record, number=4):
    slow = [make_record(f"p{n}", prefill_s=5.0, token_s=5.0, tokens=9) for n in range(number)]
    return [msgspec.structs.replace(record, server=None) for record in slow]


def facts(parts, engine):
    return Facts(
        engine=engine,
        engine_version="0",
        model="m",
        workload="w",
        concurrency=1,
        decomposition=parts,
        records=(),
        step_cost_missing="not measured",
    )


def test_vllms_histograms_split_queue_prefill_and_decode(make_record):
    metrics = sample("vllm-0.32")
    parts = decompose_by_metrics(records(make_record), metrics)
    assert parts.ttft_stages[Stage.PREFILL] == pytest.approx(metrics.figures["prefill"].mean)
    assert parts.decode_stages[Stage.DECODE] == pytest.approx(metrics.figures["decode"].mean)
    assert not {Stage.QUEUED, Stage.PREFILL, Stage.DECODE} & set(parts.not_measured)
    assert {Stage.TOKENISE, Stage.KV_TRANSFER, Stage.PREEMPTED} <= set(parts.not_measured)
    assert parts.client_s[ClientStage.SERVER] == pytest.approx(parts.ttft_s + parts.decode_s)
    assert sum(parts.client_s.values()) == pytest.approx(parts.e2e_s)


def test_llama_cpps_counters_split_prompt_and_decode_and_the_network_is_within(make_record):
    metrics = sample("llamacpp-b1-0c1e570")
    parts = decompose_by_metrics(records(make_record), metrics)
    gained = metrics.window.gained("llamacpp:tokens_predicted_seconds_total")
    assert parts.decode_stages[Stage.DECODE] == pytest.approx(gained / 4)
    assert parts.network_within
    assert Stage.QUEUED in parts.not_measured
    assert sum(parts.client_s.values()) == pytest.approx(parts.e2e_s)


def test_sglang_tells_its_queue_only(make_record):
    parts = decompose_by_metrics(
        records(make_record), seen(SGLANG.format(count=0, seconds=0.0), SGLANG.format(count=4, seconds=2.0))
    )
    assert parts.ttft_stages[Stage.QUEUED] == pytest.approx(0.5)
    assert {Stage.PREFILL, Stage.DECODE} <= set(parts.not_measured)


def test_a_stage_that_is_not_measured_is_said_to_be_and_never_shown_as_zero(make_record):
    told = find_bottleneck(
        facts(decompose_by_metrics(records(make_record), sample("llamacpp-b1-0c1e570")), "llama.cpp")
    )
    assert "waiting for a turn not measured by this engine" in told.evidence[0]
    assert "moving KV not measured by this engine" in told.evidence[0]
    assert "waiting for a turn 0" not in told.evidence[0]
    assert "waiting between them is not measured apart" in " ".join(told.evidence)
    assert any("queued" in text and "not measured by this engine" in text for text in told.cannot_conclude)


def test_an_engine_without_metrics_names_no_bottleneck(make_record):
    silent = Observed(url="http://x", absent="status 404")
    told = find_bottleneck(facts(decompose_by_metrics(records(make_record), silent), "sglang"))
    assert told.place is None
    assert "does not tell where a request waits" in told.statement
    assert told.evidence[0].count("not measured by this engine") == 5


def test_nothing_is_decomposed_when_nothing_succeeded(make_record):
    with pytest.raises(UsageError, match="connection refused"):
        decompose_by_metrics([make_record(error="connection refused")], sample("llamacpp-b1-0c1e570"))

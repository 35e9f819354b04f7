"""The exposition: what it counts, that it only rises over engine restarts, and that its label sets are closed."""

import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from netgain.ledger.collector import Collector
from netgain.ledger.prometheus import COUNTERS, GAUGES, Exporter
from netgain.ledger.records import DraftCounts, Handoff, HandoffKind, KVReuse, RequestRecord
from netgain.ledger.stage import Stage

RECORD = RequestRecord(
    request_id="r",
    choice=0,
    model="m",
    received_s=1.0,
    first_token_s=1.5,
    finished_s=2.0,
    finish_reason="stop",
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=3,
    preemptions=0,
    stages={Stage.PREFILL: 0.5, Stage.DECODE: 0.5},
    ttft_stages={Stage.PREFILL: 0.5},
    drafts=DraftCounts(),
)


def _samples(exporter: Exporter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the rendered text, by name and sorted labels, creation times left out."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exporter.render().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def _value(exporter: Exporter, name: str, **labels: str) -> float | None:
    return _samples(exporter).get((name, tuple(sorted(labels.items()))))


def test_an_ended_request_shows_in_counters_and_histograms() -> None:
    exporter = Exporter()
    exporter.request(RECORD)
    exporter.request(msgspec.structs.replace(RECORD, finish_reason="error", first_token_s=None, ttft_stages=None))
    assert _value(exporter, "netgain_requests_total", finish_reason="stop") == 1
    assert _value(exporter, "netgain_requests_total", finish_reason="error") == 1
    assert _value(exporter, "netgain_requests_total", finish_reason="length") == 0
    assert _value(exporter, "netgain_stage_seconds_total", stage="prefill") == 1.0
    assert _value(exporter, "netgain_ttft_stage_seconds_total", stage="prefill") == 0.5
    assert _value(exporter, "netgain_stage_seconds_total", stage="unattributed") == 0.0
    assert _value(exporter, "netgain_ttft_seconds_count") == 1
    assert _value(exporter, "netgain_ttft_seconds_sum") == 0.5
    assert _value(exporter, "netgain_e2e_seconds_count") == 2


def test_histogram_buckets_are_cumulative() -> None:
    exporter = Exporter()
    for tokens in (1, 2, 4):
        exporter.gap(0.02, tokens)
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in _samples(exporter).items()
        if name == "netgain_itl_seconds_bucket"
    ]
    counts = [count for _, count in sorted(buckets)]
    assert counts == sorted(counts)
    assert sorted(buckets)[-1] == (float("inf"), 7)
    assert _value(exporter, "netgain_itl_seconds_sum") == pytest.approx(0.06)


def test_positions_and_finish_reasons_are_bounded() -> None:
    exporter = Exporter()
    drafts = DraftCounts()
    drafts.add(40, 20)
    exporter.request(msgspec.structs.replace(RECORD, drafts=drafts, finish_reason="a reason nobody foresaw"))
    assert _value(exporter, "netgain_requests_total", finish_reason="other") == 1
    assert _value(exporter, "netgain_drafted_at_total", position="1") == 1
    assert _value(exporter, "netgain_accepted_at_total", position="16") == 1
    assert _value(exporter, "netgain_accepted_at_total", position="more") == 4
    assert _value(exporter, "netgain_drafted_at_total", position="more") == 24
    assert _value(exporter, "netgain_drafted_at_total", position="17") is None


def test_the_number_of_series_does_not_grow_with_requests() -> None:
    exporter = Exporter()
    exporter.request(RECORD)
    exporter.engine({"running": 1, "steps": 1})
    before = set(_samples(exporter))
    for index in range(50):
        record = msgspec.structs.replace(RECORD, request_id=f"r{index}", model=f"m{index}", error=f"e{index}")
        exporter.request(record)
        exporter.engine(
            {"running": index, "steps": index, f"stranger{index}": 1, f"handoffs/{index}": 1, "waiting/x": 1}
        )
    assert set(_samples(exporter)) == before


def test_engine_counters_go_on_over_a_restart() -> None:
    exporter = Exporter()
    exporter.engine({"steps": 10, "output_tokens": 100}, epoch="first life")
    exporter.engine({"steps": 15, "output_tokens": 150}, epoch="first life")
    exporter.engine({"steps": 20, "output_tokens": 30}, epoch="second life")
    assert _value(exporter, "netgain_steps_total", replica="0") == 35
    assert _value(exporter, "netgain_output_tokens_total", replica="0") == 180
    exporter.engine({"steps": 19}, epoch="second life")  # impossible within one life
    exporter.engine({"steps": 21}, epoch="second life")
    assert _value(exporter, "netgain_steps_total", replica="0") == 36
    assert _value(exporter, "netgain_amounts_refused_total") == 1


def test_without_an_epoch_a_fall_is_a_restart() -> None:
    exporter = Exporter()
    for steps in (10, 15, 4, 6):
        exporter.engine({"steps": steps})
    assert _value(exporter, "netgain_steps_total", replica="0") == 21


def test_replicas_are_kept_apart() -> None:
    exporter = Exporter()
    exporter.engine({"steps": 10, "running": 3}, replica=0)
    exporter.engine({"steps": 4, "running": 1}, replica="1")
    assert _value(exporter, "netgain_steps_total", replica="0") == 10
    assert _value(exporter, "netgain_steps_total", replica="1") == 4
    exporter.engine_gone("0")
    exporter.engine_gone(7)
    assert _value(exporter, "netgain_requests_running", replica="0") is None
    assert _value(exporter, "netgain_requests_running", replica="1") == 1
    assert _value(exporter, "netgain_steps_total", replica="0") == 10


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["steps", "drafted_tokens", "accepted_tokens", "step_own_s"]),
            st.sampled_from([-1, 0, 3, 7.5, float("nan"), float("inf"), None, "many", 12]),
            st.sampled_from([None, "a", "b"]),
        ),
        max_size=20,
    )
)
def test_counters_only_rise_whatever_an_engine_reports(reports: list[tuple[str, object, str | None]]) -> None:
    exporter = Exporter()
    last = _samples(exporter)
    for name, value, epoch in reports:
        exporter.engine({name: value}, epoch=epoch)
        now = _samples(exporter)
        assert all(now[key] >= before for key, before in last.items())
        last = now


def test_minus_one_is_refused_and_serving_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter()
    collector = Collector(on_request=[exporter.request])
    with caplog.at_level(logging.ERROR):
        exporter.engine({"steps": -1, "output_tokens": -1})
        exporter.gap(-0.5, 1)
        exporter.gap(0.5, -1)
        exporter.request(msgspec.structs.replace(RECORD, stages={Stage.DECODE: -1.0}))
        collector.request(msgspec.structs.replace(RECORD, output_tokens=-1))
        collector.request(RECORD)
    assert _value(exporter, "netgain_amounts_refused_total") == 4
    assert _value(exporter, "netgain_requests_total", finish_reason="stop") == 2
    assert collector.refused == 1


def test_the_collectors_counters_have_metrics() -> None:
    collector = Collector()
    handoff = Handoff(
        kind=HandoffKind.DRAFT_VERIFY,
        source="draft",
        target="verify",
        at_s=1.0,
        bytes=12,
        used_tokens=2,
        wasted_tokens=1,
        waited_s=0.25,
        busy_s=0.25,
    )
    collector.handoff(handoff)
    exporter = Exporter()
    exporter.engine(collector.counters())
    exporter.engine(collector.counters())
    assert {name for name in collector.counters() if "/" not in name} <= set(COUNTERS)
    assert _value(exporter, "netgain_handoff_bytes_total", kind="draft_verify", replica="0") == 12
    assert _value(exporter, "netgain_handoff_wasted_tokens_total", kind="draft_verify", replica="0") == 1


def test_unknown_values_are_absent_not_zero() -> None:
    exporter = Exporter()
    exporter.engine({"running": None, "steps": None})
    assert _value(exporter, "netgain_requests_running", replica="0") is None
    assert _value(exporter, "netgain_steps_total", replica="0") is None
    assert set(GAUGES).isdisjoint(COUNTERS)


def test_build_info_names_what_serves() -> None:
    exporter = Exporter()
    exporter.describe({"version": "0.1.0", "model": "default", "kernel": "unknown yet"})
    exporter.describe({"version": "0.1.0", "model": "default", "kernel": 'avx2 "exact", q4_1'})
    labels = {"version": "0.1.0", "model": "default", "kernel": 'avx2 "exact", q4_1'}
    assert [key for key in _samples(exporter) if key[0] == "netgain_build_info"] == [
        ("netgain_build_info", tuple(sorted(labels.items())))
    ]


def test_tiers_are_counted_apart_and_their_gauges_go_with_their_engine() -> None:
    exporter = Exporter()
    report = {
        "kv_lookups": 3,
        "tier_hits/disk": 5,
        "tier_hits/dram": 7,
        "tier_bytes/disk": 100.0,
        "tier_bytes/dram": None,
    }
    exporter.engine(report, replica="a")
    shown = exporter.render().decode()
    assert 'netgain_kv_lookups_total{replica="a"} 3.0' in shown
    assert 'netgain_kv_tier_hits_total{replica="a",tier="disk"} 5.0' in shown
    assert 'netgain_kv_tier_hits_total{replica="a",tier="dram"} 7.0' in shown
    assert 'netgain_kv_tier_bytes{replica="a",tier="disk"} 100.0' in shown
    assert 'netgain_kv_tier_bytes{replica="a",tier="dram"}' not in shown
    exporter.engine_gone("a")
    shown = exporter.render().decode()
    assert "netgain_kv_tier_bytes{" not in shown
    assert 'netgain_kv_tier_hits_total{replica="a",tier="disk"} 5.0' in shown


def test_codecs_are_counted_apart_and_stay_when_their_engine_goes() -> None:
    exporter = Exporter()
    exporter.engine(
        {"codec_stored/disk/raw": 2, "codec_stored/disk/zstd": 5, "codec_encode_s/disk/zstd": 0.5},
        replica="a",
        epoch="1",
    )
    exporter.engine(
        {
            "codec_stored/disk/raw": 3,
            "codec_stored/disk/zstd": 5,
            "codec_encode_s/disk/zstd": 0.75,
            "codec_break_even_bytes_per_s/disk/zstd": 2e8,
        },
        replica="a",
        epoch="1",
    )
    before = exporter.render().decode()
    assert 'break_even_bytes_per_second{codec="zstd",replica="a",tier="disk"} 2e+08' in before
    exporter.engine_gone("a")
    shown = exporter.render().decode()
    assert 'netgain_kv_codec_stored_total{codec="raw",replica="a",tier="disk"} 3.0' in shown
    assert 'netgain_kv_codec_stored_total{codec="zstd",replica="a",tier="disk"} 5.0' in shown
    assert 'netgain_kv_codec_encode_seconds_total{codec="zstd",replica="a",tier="disk"} 0.75' in shown
    assert "break_even_bytes_per_second{" not in shown


def test_reuse_is_shown_with_the_predictions_behind_it() -> None:
    exporter = Exporter()
    kv = KVReuse(why="load", loaded_tokens=96, source="disk", waited_s=0.02, warm_s=0.1, full_s=1.0, actual_s=0.12)
    exporter.request(msgspec.structs.replace(RECORD, prompt_tokens=300, cached_tokens=200, kv=kv))
    shown = exporter.render().decode()
    assert "netgain_kv_hit_tokens_sum 200.0" in shown
    assert 'netgain_kv_load_tokens_sum{source="disk"} 96.0' in shown
    assert 'netgain_kv_load_wait_seconds_sum{source="disk"} 0.02' in shown
    assert 'netgain_kv_prediction_ratio_sum{why="load"} 1.2' in shown

"""Every figure has one definition; failures stay inside, and what is not known is None."""

import math

import msgspec
import pytest

from netgain.measuring.client.meter import ClientLoad
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.run import Run
from netgain.measuring.client.summary import format_seconds, per_request, per_token, summarise
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.slo import parse_slo


def record(
    number: int, *, ttft_s: float = 0.1, gap_s: float = 0.02, tokens: int = 11, late_s: float = 0.0
) -> ClientRecord:
    """A success: scheduled one a second, first token after `ttft_s`, then one every `gap_s`."""
    at = 100.0 + number
    times = tuple(at + ttft_s + gap_s * place for place in range(tokens))
    return ClientRecord(
        item_id=f"i{number}",
        category="c",
        scheduled_s=at,
        sent_s=at + late_s,
        finished_s=times[-1] if times else at + ttft_s,
        first_token_s=times[0] if times else None,
        first_text_s=times[0] if times else None,
        chunk_times_s=times,
        chunk_tokens=(1,) * tokens,
        tokens_source="usage",
        output_tokens=tokens,
    )


def failure(number: int) -> ClientRecord:
    at = 100.0 + number
    return ClientRecord(
        item_id=f"i{number}",
        category="c",
        scheduled_s=at,
        sent_s=at,
        finished_s=at + 0.5,
        error="status 500",
        error_kind=ErrorKind.HTTP,
    )


def changes(*records: ClientRecord) -> tuple[tuple[float, int], ...]:
    edges = sorted([(record.sent_s, 1) for record in records] + [(record.finished_s, -1) for record in records])
    return tuple((at_s, sum(by for _, by in edges[: place + 1])) for place, (at_s, _) in enumerate(edges))


def made_run(*records: ClientRecord, void: str | None = None) -> Run:
    start_s = min((record.scheduled_s for record in records), default=100.0)
    end_s = max((record.finished_s for record in records), default=100.0)
    load = ClientLoad(
        lateness_p50_s=0.0,
        lateness_p99_s=0.0,
        loop_lag_p99_s=0.0,
        wall_s=end_s - start_s,
        cpu_s=0.0,
        cpu_share=0.0,
    )
    return Run(
        records=records,
        arrivals=Closed(1),
        started_s=start_s,
        finished_s=end_s,
        steady_until_s=end_s,
        changes=changes(*records),
        unscheduled=0,
        client=load,
        void=void,
        netgain_server=False,
    )


def test_figures_of_a_plain_run() -> None:
    summary = summarise(made_run(*(record(number) for number in range(10))))
    assert summary.ttft.p50 == pytest.approx(0.1)
    assert summary.tpot.p95 == pytest.approx(0.02)
    assert summary.itl.count == 100
    assert summary.e2e.mean == pytest.approx(0.3)
    assert summary.window_s == pytest.approx(9.3)
    assert summary.output_tokens == 110
    assert summary.output_tokens_per_s == pytest.approx(110 / 9.3)
    assert summary.requests_per_s == pytest.approx(10 / 9.3)
    assert summary.tokens_source == {"usage": 10}
    assert summary.error_rate == 0.0
    assert (summary.goodput_per_s, summary.attainment) == (None, None)
    assert summary.usable


def test_latency_counts_from_the_schedule() -> None:
    late = record(0, late_s=0.08)
    assert late.ttft_s == pytest.approx(0.1)
    assert summarise(made_run(late)).lateness.p50 == pytest.approx(0.08)


def test_failures_are_inside_the_percentiles() -> None:
    """With 6 of 100 failed, p95 is not what the other 94 had."""
    run = made_run(*(record(number) for number in range(94)), *(failure(number) for number in range(94, 100)))
    summary = summarise(run)
    for figure in (summary.ttft, summary.e2e, summary.tpot, summary.itl, summary.chunk_gap):
        assert figure.p50 is not None
        assert math.isfinite(figure.p50)
        assert figure.p95 == math.inf
        assert figure.failed == 6
        assert figure.mean is not None
        assert math.isfinite(figure.mean)
    assert summary.errors == {ErrorKind.HTTP: 6}
    assert summary.error_rate == pytest.approx(0.06)


def test_four_failures_in_a_hundred_leave_p95_finite() -> None:
    summary = summarise(
        made_run(*(record(number) for number in range(96)), *(failure(number) for number in range(96, 100)))
    )
    assert summary.itl.p95 == pytest.approx(0.02)
    assert summary.ttft.p95 == pytest.approx(0.1)
    assert summary.itl.p99 == summary.ttft.p99 == math.inf


def test_no_request_no_token_one_token_no_time() -> None:
    empty = summarise(made_run())
    assert (empty.error_rate, empty.requests_per_s, empty.output_tokens, empty.ttft.p50) == (None, None, None, None)
    assert not empty.usable
    silent = summarise(made_run(record(0, tokens=0)))
    assert (silent.ttft.p50, silent.tpot.p50, silent.output_tokens) == (None, None, 0)
    single = summarise(made_run(record(0, tokens=1)))
    assert (single.tpot.p50, single.itl.p99, single.itl.mean) == (None, None, None)
    assert single.ttft.p50 == pytest.approx(0.1)
    instant = summarise(made_run(record(0, ttft_s=0.0, tokens=1)))
    assert (instant.window_s, instant.output_tokens_per_s) == (0.0, None)
    for summary in (empty, silent, single, instant):
        assert msgspec.json.decode(msgspec.json.encode(summary))


def test_an_unknown_token_count_makes_the_sum_unknown() -> None:
    unknown = msgspec.structs.replace(record(1), output_tokens=None)
    assert summarise(made_run(record(0), unknown)).output_tokens is None


def test_thin_percentiles_and_uncertainty_are_shown() -> None:
    three = per_request([0.012, 0.020, 0.047])
    assert (three.p99, three.count, three.thin) == (0.047, 3, ("p95", "p99"))
    assert three.interval == {"p50": None, "p95": None, "p99": None}
    sixty = per_request([float(number) for number in range(60)])
    assert sixty.thin == ("p99",)
    interval = sixty.interval["p50"]
    assert interval is not None
    assert interval[0] < sixty.p50 < interval[1]  # type: ignore[operator]


def test_tokens_that_come_together_share_the_gap() -> None:
    figure = per_token([[(0.025, 4), (0.1, 1)]])
    assert figure.count == 5
    assert figure.p50 == 0.025
    assert figure.mean == pytest.approx(0.04)


def test_goodput_counts_requests_that_meet_the_whole_slo() -> None:
    slow = record(8, ttft_s=0.9)
    silent = record(9, tokens=0)
    run = made_run(*(record(number) for number in range(7)), failure(7), slow, silent)
    summary = summarise(run, parse_slo("ttft=500ms,itl=50ms"))
    assert summary.attainment == 0.7
    assert summary.unjudged == 1
    assert summary.goodput_per_s == pytest.approx(7 / summary.window_s)
    ttft, itl = summary.slo_targets
    assert (ttft.met, ttft.value_s, ttft.thin) == (False, math.inf, True)
    assert itl.target == "itl.p95=50ms"
    assert itl.met is False
    assert summarise(made_run(record(0)), parse_slo("ttft=500ms,e2e=1s,tpot=20ms")).slo_targets[0].met is True


def test_littles_law_is_checked() -> None:
    run = made_run(record(0), record(1))
    little = summarise(run).little
    assert little is not None
    assert little.in_flight == pytest.approx(2 * 0.3 / 1.3)
    assert little.deviation == pytest.approx(0.0)
    lost = msgspec.structs.replace(run, records=run.records[:1])
    little = summarise(lost).little
    assert little is not None
    assert little.deviation == pytest.approx(-0.5), "a record is missing"


def test_rates_are_those_of_the_steady_load() -> None:
    """vllm-project/guidellm#93: filling up and draining lower a mean over the whole run."""
    run = msgspec.structs.replace(
        made_run(*(record(number) for number in range(4, 10))),
        warm_up=tuple(record(number) for number in range(4)),
        steady_until_s=109.0,
    )
    summary = summarise(run)
    assert summary.window_s == pytest.approx(5.0)
    assert summary.requests == 6
    assert summary.requests_per_s == pytest.approx(1.0), "the last request ended after the window"
    assert summary.output_tokens_per_s == pytest.approx(5 * 11 / 5.0)


def test_attainment_and_goodput_have_intervals() -> None:
    slow = tuple(record(number, ttft_s=0.9) for number in range(90, 100))
    summary = summarise(made_run(*(record(number) for number in range(90)), *slow), parse_slo("ttft=500ms"))
    assert summary.attainment == 0.9
    assert summary.attainment_interval is not None
    low, high = summary.attainment_interval
    assert low < 0.83, "ten bad ones in a row are not ten independent ones"
    assert high > 0.95
    assert summary.goodput_interval is not None
    assert summary.goodput_per_s is not None
    assert summary.goodput_interval[0] < summary.goodput_per_s < summary.goodput_interval[1]


def test_a_void_run_is_not_usable() -> None:
    summary = summarise(made_run(record(0), void="the client was busy"))
    assert summary.void == "the client was busy"
    assert not summary.usable


def test_seconds_are_shown_with_their_unit() -> None:
    assert [format_seconds(value) for value in (0.0123, 1.234, math.inf, None, 0.0)] == [
        "12.3 ms",
        "1.23 s",
        "failed",
        "n/a",
        "0.0 ms",
    ]

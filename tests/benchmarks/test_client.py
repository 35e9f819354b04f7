"""The timing client beside a server that says when it wrote: what a claim of 500 streams rests on."""

import pytest

from benchmarks.client import figures_of, measure


async def test_every_stream_is_read_and_stamps_lie_behind_the_writing():
    result = await measure(streams=20, rate=20.0, seconds=3.0)
    figures = figures_of(result, 20)
    assert figures["failed"] == 0
    assert figures["streams_in_flight"] == pytest.approx(20, abs=0.5)
    assert figures["tokens_per_s"] == pytest.approx(20 * 20 * 3 / (3 + 2), rel=0.25), (
        "all within the ramp and a stream's time"
    )
    assert 0.0 < figures["stamp_lateness_p50_ms"] <= figures["stamp_lateness_p99_ms"] < 50.0
    assert figures["lateness_p99_ms"] >= figures["stamp_lateness_p99_ms"]
    assert 0.0 < figures["client_cpu_share"] < 0.9


@pytest.mark.slow
async def test_500_streams_of_20_tokens_a_second_are_stamped_within_10_ms():
    figures = figures_of(await measure(streams=500, rate=20.0, seconds=10.0), 500)
    assert figures["failed"] == 0
    assert figures["streams_in_flight"] == pytest.approx(500, abs=5)
    assert figures["lateness_p99_ms"] < 10.0

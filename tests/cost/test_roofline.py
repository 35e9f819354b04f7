"""Shares of the machine's limits are those of the arithmetic, and unknown wherever a part of it is."""

import msgspec
import pytest

from netgain.cost.machine import Machine, MachineProbe, ProductRate, ReadRate
from netgain.cost.roofline import StepCounts, StepWork, bandwidth_share, decode_limit, prefill_limit

PROBE = MachineProbe(
    machine=Machine(cpu="c", cores=2, memory_bytes=1 << 34, kernel="Linux"),
    taken="2026-01-01T00:00:00+00:00",
    reads=(
        ReadRate(threads=1, bytes_per_s=12e9, array_bytes=1 << 30, repeats=5, by="C++"),
        ReadRate(threads=2, bytes_per_s=20e9, array_bytes=1 << 30, repeats=5, by="C++"),
    ),
    products=tuple(
        ProductRate(dtype=dtype, ops_per_s=rate, threads=2, rows=256, repeats=9, kernels="cpp-v1")
        for dtype, rate in (("q4_1", 100e9), ("q8_0", 50e9))
    ),
)
WORK = StepWork(
    device="cpu",
    kernels="cpp-v1",
    step_weight_bytes=100_000_000,
    kv_token_bytes=20_000,
    layer_ops={"q4_1": 200_000_000},
    head_ops={"q8_0": 50_000_000},
    windowed=False,
)
COUNTS = StepCounts(
    decode_steps=50,
    decode_s=0.5,
    decode_context_tokens=50 * 500,
    prefill_steps=4,
    prefill_s=4.0,
    prefill_tokens=1000,
    prefill_chosen=40,
)


def test_decode_reads_weights_once_and_kv_of_every_request() -> None:
    """(100 MB + 500 tokens of 20 kB) in 10 ms are 11 GB/s, of the 20 that both threads read."""
    found = decode_limit(COUNTS, WORK, PROBE)
    assert found.step_s == pytest.approx(0.010)
    assert found.achieved == pytest.approx(11e9)
    assert (found.limit, found.share) == (20e9, pytest.approx(0.55))
    assert found.missing is None


def test_prefill_is_judged_by_the_rates_of_its_own_types() -> None:
    """200 GFLOP of q4_1 take 2 s at best and 2 GFLOP of q8_0 0.04 s; it took 4 s."""
    found = prefill_limit(COUNTS, WORK, PROBE)
    assert found.achieved == pytest.approx(202e9 / 4)
    assert found.share == pytest.approx(2.04 / 4)
    assert found.limit == pytest.approx(202e9 / 2.04)


def test_without_a_probe_what_was_reached_is_known_and_the_share_is_not() -> None:
    for found in (decode_limit(COUNTS, WORK, None), prefill_limit(COUNTS, WORK, None)):
        assert found.achieved is not None
        assert (found.limit, found.share) == (None, None)
        assert "netgain doctor" in (found.missing or "")


@pytest.mark.parametrize(
    ("work", "probe", "word"),
    [
        (msgspec.structs.replace(WORK, kernels="cpp-v2"), PROBE, "cpp-v2"),
        (WORK, msgspec.structs.replace(PROBE, products=PROBE.products[:1]), "q8_0"),
        (msgspec.structs.replace(WORK, device="cuda"), PROBE, "cuda"),
    ],
)
def test_rates_of_other_kernels_types_or_devices_are_no_limit(work: StepWork, probe: MachineProbe, word: str) -> None:
    found = prefill_limit(COUNTS, work, probe)
    assert (found.limit, found.share) == (None, None)
    assert word in (found.missing or "")


def test_a_window_makes_the_bytes_read_unknown() -> None:
    found = decode_limit(COUNTS, msgspec.structs.replace(WORK, windowed=True), PROBE)
    assert (found.achieved, found.share) == (None, None)
    assert found.step_s == pytest.approx(0.010)


def test_phases_without_a_step_of_their_own_are_unknown() -> None:
    for found in (decode_limit(StepCounts(), WORK, PROBE), prefill_limit(StepCounts(), WORK, PROBE)):
        assert (found.steps, found.step_s, found.achieved, found.share) == (0, None, None, None)
        assert found.missing


def test_counts_are_taken_between_two_looks() -> None:
    assert COUNTS.since(COUNTS) == StepCounts()
    assert COUNTS.since(StepCounts()) == COUNTS


def test_the_bandwidth_share_is_bytes_over_time_over_bandwidth() -> None:
    """What a benchmark reports as decode_bandwidth_share."""
    assert bandwidth_share(100e6, 0.010, 20e9) == pytest.approx(0.5)
    assert bandwidth_share(100e6, 0.010, None) is None
    assert bandwidth_share(100e6, 0.0, 20e9) is None

"""Numbers with units: read exactly, refused when they could mean two things, written readably."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost import quantity
from netgain.errors import UsageError


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (quantity.size, "16GiB", 16 * 2**30),
        (quantity.size, "1.5 MB", 1.5e6),
        (quantity.size, "12kB", 12e3),
        (quantity.size, "8gib", 8 * 2**30),
        (quantity.size, "8bit", 1.0),
        (quantity.bandwidth, "25Gbit/s", 25e9 / 8),
        (quantity.bandwidth, "100Gbps", 100e9 / 8),
        (quantity.bandwidth, "12GiB/s", 12 * 2**30),
        (quantity.duration, "40ms", 0.040),
        (quantity.duration, "5us", 5e-6),
        (quantity.duration, "3min", 180.0),
        (quantity.frequency, "8/s", 8.0),
        (quantity.frequency, "30/min", 0.5),
        (quantity.amount, "100K", 100_000.0),
        (quantity.amount, "5,500", 5500.0),
        (quantity.share, "80%", 0.8),
        (quantity.share, ".5", 0.5),
        (quantity.money, "2.50", 2.5),
    ],
)
def test_what_people_write_is_read(read, text, value):
    assert read(text).value == pytest.approx(value, rel=1e-12)
    assert str(read(text)) == text


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (quantity.size, "16", "has no unit"),
        (quantity.size, "16Gb", "bits or bytes; write Gbit or GB"),
        (quantity.bandwidth, "25Gb/s", "bits or bytes; write Gbit/s or GB/s"),
        (quantity.bandwidth, "16GiB", "unit 'GiB' is unknown"),
        (quantity.size, "-1GiB", "at least 0"),
        (quantity.size, "1e400GiB", "finite"),
        (quantity.size, "GiB", "is not a size"),
        (quantity.duration, "40", "has no unit"),
        (quantity.duration, "40mS", "unknown"),
        (quantity.amount, "5m", "unknown"),
        (quantity.share, "1.2", "more than everything"),
        (quantity.frequency, "8", "has no unit"),
    ],
)
def test_what_could_mean_two_things_or_nothing_is_refused_with_an_example(read, text, said):
    with pytest.raises(UsageError, match=said):
        read(text)


def test_values_are_written_in_the_unit_that_reads_best():
    assert quantity.write_size(9.6 * 2**30, per_second=True) == "9.6 GiB/s"
    assert quantity.write_size(23_040) == "22.5 KiB"
    assert quantity.write_size(12) == "12 B"
    assert quantity.write_time(0.25) == "250 ms"
    assert quantity.write_time(math.inf) == "never"
    assert quantity.write_time(0.0) == "0 s"
    assert quantity.write_number(500_000) == "500,000"
    assert quantity.write_number(2.3616) == "2.3616"


@given(st.floats(1.0, 1e15))
def test_a_written_size_reads_back(value):
    assert quantity.size(quantity.write_size(value)).value == pytest.approx(value, rel=1e-3)

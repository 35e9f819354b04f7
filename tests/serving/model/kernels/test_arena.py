"""Parts of an arena are apart, begin on a cache line, and outlive it; where the system gives huge pages they lie in some."""

import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.model.kernels.arena import CHUNK, LINE, Arena


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_parts_are_apart_and_outlive_the_arena(sizes):
    arena = Arena()
    parts = [arena.empty(size) for size in sizes]
    for number, part in enumerate(parts):
        part.fill_(number)
    del arena
    assert [len(part) for part in parts] == sizes
    assert all(bool((part == number).all()) for number, part in enumerate(parts))
    assert all(part.data_ptr() % LINE == 0 for part in parts)


def test_a_part_may_be_larger_than_a_chunk():
    arena = Arena()
    small, large, next_one = arena.empty(100), arena.empty(CHUNK + 1), arena.empty(100)
    for number, part in enumerate((small, large, next_one)):
        part.fill_(number)
    assert [int(part[-1]) for part in (small, large, next_one)] == [0, 1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="pages are looked up in /proc")
def test_weights_lie_in_huge_pages_if_there_are_any():
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("this system gives no huge pages")

    def huge_kib():
        return int(re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1])

    before = huge_kib()
    part = Arena().empty(16 << 20)
    part.fill_(1)
    if huge_kib() == before:
        pytest.skip("memory is too fragmented for huge pages now")
    assert huge_kib() - before >= 8 << 10
    assert torch.equal(part[:2], torch.ones(2, dtype=torch.uint8))

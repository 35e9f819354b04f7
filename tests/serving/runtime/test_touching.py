"""The pages of a KV pool are there before it is written to, and what is in them stays."""

import mmap
import sys

import numpy as np
import psutil
import pytest
import torch

from netgain.serving.runtime import touching
from netgain.serving.runtime.touching import touch_behind


def pool(layers: int = 6) -> torch.Tensor:
    """uint8 [layers, blocks, bytes], of pages that nobody has written to."""
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, layers * 8 << 20), np.uint8).reshape(layers, 64, -1))


@pytest.mark.skipif(sys.platform != "linux", reason="the system's advice is Linux's")
def test_a_pool_has_its_pages_and_keeps_what_is_in_it() -> None:
    keys, values = pool(), pool()
    keys[3, 5, 100:200] = 7
    before = psutil.Process().memory_info().rss
    thread = touch_behind([keys, values])
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    grown = psutil.Process().memory_info().rss - before
    assert grown > 0.8 * (keys.nbytes + values.nbytes)
    assert int(keys.sum()) == 700
    assert int(values.sum()) == 0


def test_no_pool_takes_more_than_half_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 90 << 20

    monkeypatch.setattr(touching.psutil, "virtual_memory", Memory)
    assert touch_behind([pool()]) is None
    assert touch_behind([]) is None

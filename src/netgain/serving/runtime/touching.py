"""Memory that is certain to be used, taken from the system before it is: whoever writes to a page first waits until the system
has found and cleared it, which copying KV into a fresh pool would do for every page."""

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence

import psutil
import torch

_POPULATE_WRITE = (
    23  # MADV_POPULATE_WRITE of Linux 5.14: pages as if they had been written to, what is in them unchanged
)
_AT_ONCE = 2 << 20  # bytes of one layer
_SHARE = 0.5  # of the memory that is available, at most: no fresh server may push another program out


def touch_behind(memories: Sequence[torch.Tensor]) -> threading.Thread | None:
    """Take the pages of a KV pool, [layers, blocks, ...] each, on a thread of its own, the first blocks first, since they are
    used first. None, and pages that come as they are written to, where the system cannot do it or more than half of what is
    available would go."""
    on_cpu = [memory for memory in memories if memory.device.type == "cpu" and memory.numel()]
    size = sum(memory.nbytes for memory in on_cpu)
    if sys.platform != "linux" or not on_cpu or size > psutil.virtual_memory().available * _SHARE:
        return None
    thread = threading.Thread(target=_touch, args=(on_cpu,), name="kv-pool", daemon=True)
    thread.start()
    return thread


def _touch(memories: Sequence[torch.Tensor]) -> None:
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    layers = [layer for memory in memories for layer in memory]
    for memory in memories:
        _advised(advise, memory.data_ptr(), memory.nbytes, mmap.MADV_HUGEPAGE)  # refused: pages stay small
    most = max(layer.nbytes for layer in layers)
    for start in range(0, most, _AT_ONCE):
        for layer in layers:
            size = min(_AT_ONCE, layer.nbytes - start)
            if size > 0 and not _advised(advise, layer.data_ptr() + start, size, _POPULATE_WRITE):
                return


def _advised(advise: "ctypes._NamedFuncPointer", address: int, size: int, advice: int) -> bool:
    """Of every page that has a byte of these."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    return bool(advise(first, address + size - first, advice) == 0)

"""Memory for weights in huge pages: a step reads every weight once, and with 4 KiB pages the processor's prefetching ends, and
an address has to be looked up, every 4 KiB."""

import contextlib
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
CHUNK = 32 << 20
LINE = 64  # bytes that a processor fetches together: no matrix begins inside one


class Arena:
    """Gives out parts of large mappings, which live as long as the tensors over them. The system may refuse huge pages; then the
    pages are small, and nothing else changes."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = self._size = 0

    def empty(self, size: int) -> Tensor:
        """uint8 [size], not set. What is left of a chunk is given up when a part does not fit."""
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        if self._chunk is None or self._used + size > self._size:
            self._chunk, self._size, self._used = _mapped(max(size, CHUNK))
        part = torch.frombuffer(self._chunk, dtype=torch.uint8, count=size, offset=self._used)
        self._used += -(-size // LINE) * LINE
        return part


def _mapped(size: int) -> tuple[mmap.mmap, int, int]:
    """A mapping, its size, and where its first huge page begins."""
    whole = (-(-size // HUGE_PAGE) + 1) * HUGE_PAGE
    chunk = mmap.mmap(-1, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            chunk.madvise(mmap.MADV_HUGEPAGE)
    begin = torch.frombuffer(chunk, dtype=torch.uint8, count=1).data_ptr()
    return chunk, whole, -begin % HUGE_PAGE

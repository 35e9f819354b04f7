"""Memory that what is read from media goes into, kept and used again: finding and clearing new pages takes the system two to
three times as long as copying bytes into old ones, and each read of whole blocks would need new ones.

Files are read into it, and not mapped: whoever shortens a file that is mapped kills (SIGBUS) the process that looks at it, and
what was checked could be other bytes by the time they are used."""

import contextlib
import mmap
import threading
import weakref

import numpy as np

KEPT_BYTES = 64 << 20
_UNIT = 16 << 10


class Staging:
    """Memory for what is being read, from any thread. At most `kept` bytes are used again and again; the system gives them when
    they are first written to, in huge pages where it has them."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._memory = mmap.mmap(-1, max(1, kept // _UNIT) * _UNIT)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._taken = bytearray(max(1, kept // _UNIT))  # by unit: 1 while somebody holds it
        self._choosing = threading.Lock()

    def room(self, size: int) -> memoryview:
        """So many bytes, not set, which are used again when nobody holds this view, or a part of it, any more. What does not fit
        beside what others hold is memory of its own."""
        units = -(-size // _UNIT)
        with self._choosing:
            first = self._taken.find(bytes(units))
            if first < 0 or not units:
                return np.empty(size, np.uint8).data
            self._taken[first : first + units] = b"\x01" * units
        place = np.frombuffer(self._memory, np.uint8, size, first * _UNIT)
        weakref.finalize(place, self._free, first, units).atexit = False
        return place.data  # every view of a view refers to `place`

    @property
    def held(self) -> int:
        """Kept bytes that somebody holds now."""
        return sum(self._taken) * _UNIT

    def _free(self, first: int, units: int) -> None:
        """Called wherever the last view is dropped, perhaps by a thread that is in `room`: takes no lock."""
        self._taken[first : first + units] = bytes(units)

"""At which rates this machine moves KV: memory copied to memory, and a folder's disk written and read past the page cache."""

import os
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from netgain.errors import UsageError

PASSES = 3  # over the bytes of KV on its way: checksum, gathering, placing
_DISK_BYTES = 1 << 26


class DiskRates(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second of one file. `dropped`: whether the system could be told to forget it before it was read."""

    read: float
    write: float
    dropped: bool


def copy_rate(size: int = 1 << 25, repeats: int = 5) -> float:
    """Bytes per second at which this machine copies memory that no cache holds, as the best of some tries."""
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    best_s = float("inf")
    for _ in range(repeats):
        began_s = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - began_s)
    return size / best_s


def disk_rates(folder: str, size: int = _DISK_BYTES) -> DiskRates:
    """Of a file in `folder`, made where it is not there, that is removed again. Raises UsageError where it cannot be written."""
    data = np.random.default_rng(0).bytes(size)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            began_s = time.perf_counter()
            written = 0
            while written < size:
                written += file.write(data[written:]) or 0
            os.fsync(file.fileno())
            write_s = time.perf_counter() - began_s
            dropped = hasattr(os, "posix_fadvise")
            if dropped:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            began_s = time.perf_counter()
            while file.read(1 << 20):
                pass
            read_s = time.perf_counter() - began_s
    except OSError as error:
        raise UsageError(
            f"the folder {folder} of the disk tier cannot be written ({error.strerror or error}); name another"
        ) from error
    return DiskRates(read=size / read_s, write=size / write_s, dropped=dropped)

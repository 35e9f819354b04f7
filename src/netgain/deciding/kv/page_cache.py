"""Makes the next read of a folder's files come from the disk, and tells whether it will."""

import errno
import os
import time
from pathlib import Path

import msgspec

TRIES, PAUSE_S = 20, 0.02


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """`files` there are, of which `resident` were still in the page cache after it was asked to drop them (None: the system
    does not tell)."""

    files: int
    resident: int | None

    @property
    def says(self) -> str | None:
        """Why a read may come from memory all the same; None where it does not."""
        if self.files == 0:
            return "the disk tier had no files, so nothing could be warm from disk"
        if self.resident is None:
            return "the system does not tell whether the tier's files left the page cache, so 'from disk' may be from memory"
        if self.resident:
            return f"{self.resident} of {self.files} files of the tier stayed in the page cache, so they were read from memory"
        return None


def forget_files(folder: Path, pattern: str = "*.kv") -> Forgotten:
    """Write what is dirty, drop all from the page cache, and look. Files that vanish meanwhile are left out."""
    if not (hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")):
        return Forgotten(files=sum(1 for _ in folder.rglob(pattern)), resident=None)
    found: list[bool | None] = []
    for path in sorted(folder.rglob(pattern)):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)  # what is not written cannot be dropped
            for _ in range(TRIES):  # pages that the system holds at this moment stay
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                stayed = _resident(descriptor)
                if not stayed:
                    break
                time.sleep(PAUSE_S)
            found.append(stayed)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # looking may have brought it back
        finally:
            os.close(descriptor)
    return Forgotten(files=len(found), resident=None if None in found else sum(map(bool, found)))


def _resident(descriptor: int) -> bool | None:
    """Whether the beginning of the file can be read without waiting for the disk."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True

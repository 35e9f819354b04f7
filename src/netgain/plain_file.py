"""Files and folders that the user named, whatever they turn out to be."""

import errno
import stat
import tempfile
from pathlib import Path

from netgain.errors import UsageError


def read_plain(path: Path) -> bytes:
    """As `Path.read_bytes`, of a file or a pipe. A device, which may have no end, is an OSError like all that cannot be read."""
    with path.open("rb") as file:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
        return file.read()


def claim_folder(folder: Path) -> None:
    """Make it and see that it can be written, before work of hours depends on it. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror or error}); name another folder (--output)"
        ) from error

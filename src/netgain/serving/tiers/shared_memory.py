"""Memory that outlives its processes: a folder of the machine's memory file system, in the same crash-safe form as on disk
(disk.py). It is gone when the machine restarts, and when somebody purges it."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from netgain.errors import UsageError

ROOT = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: str) -> None:
    """Raises ValueError for what is no name of shared memory."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of shared memory: use up to 64 letters, digits and _ . -")


def folder_of(name: str, root: Path = ROOT) -> Path:
    """This user's folder of that name, there or not."""
    return root / f"netgain-kv-{os.getuid()}-{name}"


def check_folder(folder: Path, capacity_bytes: int) -> None:
    """Raises UsageError where that much cannot lie there, or somebody else could read or change what does."""
    root = folder.parent
    try:
        system = os.statvfs(root)
    except OSError as error:
        raise UsageError(
            f"there is no shared memory at {root} ({error.strerror}): use a dram tier, which is this process's own"
        ) from error
    there = system.f_blocks * system.f_frsize
    if there < capacity_bytes:
        raise UsageError(
            f"a shm tier of {_mib(capacity_bytes)} does not fit into {root}, which may hold {_mib(there)}: make the tier "
            "smaller, enlarge the file system (docker run --shm-size, mount -o remount,size=), or use a dram tier"
        )
    try:
        state = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
        raise UsageError(f"{folder} is not a folder of this user alone (mode 0700): remove it, or choose another name")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def held(root: Path = ROOT) -> dict[str, int]:
    """Bytes of files in each of this user's folders, by name; servers may be adding and removing some meanwhile."""
    prefix = folder_of("", root).name
    folders = [path for path in root.glob(f"{prefix}*") if path.is_dir() and not path.is_symlink()]
    return {folder.name.removeprefix(prefix): sum(map(_file_bytes, _files(folder))) for folder in folders}


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):  # which leaves out what is gone when it gets there
        yield from (Path(place, name) for name in names)


def _file_bytes(path: Path) -> int:
    """0 for what is no file, or none any more."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return 0
    return state.st_size if stat.S_ISREG(state.st_mode) else 0

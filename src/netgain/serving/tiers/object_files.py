"""Files of a folder that several processes write to and anybody may put things into."""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from netgain.errors import UsageError
from netgain.serving.tiers.medium import Fault, FaultKind

_KINDS: Mapping[int, FaultKind] = MappingProxyType(
    {
        errno.ENOSPC: FaultKind.FULL,
        errno.EDQUOT: FaultKind.FULL,
        errno.EFBIG: FaultKind.FULL,
        errno.EROFS: FaultKind.READ_ONLY,
        errno.EACCES: FaultKind.READ_ONLY,
        errno.EPERM: FaultKind.READ_ONLY,
    }
)


def open_object(path: Path | str) -> int | None:
    """An object's file for reading; None where there is none, or something that is no file: links, folders and pipes under the
    name of an object are not ours, and a pipe would be waited for. Raises OSError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            return None
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def read_all(file: int, size: int) -> bytes:
    """So many bytes from where it stands, fewer where it ends before. Raises OSError."""
    data = os.read(file, size)
    while len(data) < size and (more := os.read(file, size - len(data))):
        data += more
    return data


def read_into(file: int, room: memoryview, start: int = 0) -> memoryview:
    """The bytes from `start` on, as many as there is room for; fewer where the file ends before. Raises OSError."""
    os.lseek(file, start, os.SEEK_SET)
    came = 0
    while came < len(room) and (more := os.readv(file, [room[came:]])):
        came += more
    return room[:came]


def whole_object(path: Path) -> bytes | None:
    """What is in an object's file; None where there is none. Raises OSError."""
    file = open_object(path)
    if file is None:
        return None
    try:
        return read_all(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def write_whole(path: Path, number: int, data: bytes | memoryview, *, durable: bool) -> None:
    """Write a file beside its place under a name with this process's `number`, locked, and rename it. Raises OSError;
    BlockingIOError and FileNotFoundError where another process took it for a dead writer's."""
    unfinished = path.with_suffix(f".{os.getpid()}-{number}.tmp")
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        view, done = memoryview(data), 0
        while done < len(view):
            done += os.write(file, view[done:])
        if durable:
            os.fsync(file)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def is_object(path: Path | str) -> bool:
    """Whether there is a file. Raises OSError."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def fault_of(error: OSError) -> Fault:
    """What it says of the medium."""
    return Fault(_KINDS.get(error.errno or 0, FaultKind.UNREACHABLE), str(error))


def unusable(folder: Path, how: str, error: OSError) -> UsageError:
    """For whoever named the folder."""
    where = "" if error.filename in (None, str(folder)) else f" ({error.filename})"
    return UsageError(f"the KV folder {folder} cannot be {how}: {error.strerror}{where}. Give a folder of yours")


def shards(folder: Path) -> list[Path]:
    """The folders that objects are spread over. Raises OSError."""
    return [Path(entry.path) for entry in scandir(folder) if _is_shard(entry)]


def entries(folder: Path) -> "Iterator[os.DirEntry[str]]":
    """Every file in the folder and its shards. Raises OSError."""
    for entry in scandir(folder):
        if _is_shard(entry):
            yield from scandir(Path(entry.path))
        else:
            yield entry


def _is_shard(entry: "os.DirEntry[str]") -> bool:
    """Whether it is one, and no link to one."""
    return re.fullmatch("[0-9a-f]{2}", entry.name) is not None and entry.is_dir(follow_symlinks=False)


def scandir(folder: Path) -> "list[os.DirEntry[str]]":
    """What is there; nothing where the folder is gone. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def remove_if_dead(unfinished: Path) -> bool:
    """Remove a file that nobody is writing; whether it was one."""
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.unlink()
    except OSError:
        return False
    finally:
        os.close(file)
    return True

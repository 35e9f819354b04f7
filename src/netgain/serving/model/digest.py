"""Content digests of weight files, remembered in the user's cache, because a large model takes long to hash again."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from netgain.folders import cache_folder


def files_digest(files: Sequence[Path]) -> str:
    """32 hex digits over the contents of the files, in order; their names and places do not matter."""
    if len(files) == 1:
        return _file_digest(files[0])[:32]
    return blake3("".join(_file_digest(file) for file in files).encode()).hexdigest()[:32]


def _file_digest(file: Path) -> str:
    """blake3 of one file; a remembered one counts while size, change time and inode are the same."""
    file = file.resolve()
    status = file.stat()
    identity = [str(file), status.st_size, status.st_mtime_ns, status.st_ino]
    memory = cache_folder() / "digests" / f"{blake3(str(file).encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        remembered = json.loads(memory.read_text())
        if remembered["of"] == identity:
            return str(remembered["blake3"])
    digest = blake3(max_threads=blake3.AUTO).update_mmap(file).hexdigest()
    with suppress(OSError):  # a cache that cannot be written only costs time
        memory.parent.mkdir(parents=True, exist_ok=True)
        fresh = memory.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"of": identity, "blake3": digest}))
        fresh.replace(memory)
    return digest

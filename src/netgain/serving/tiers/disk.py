"""A folder as a medium: one file per object, whole or absent whenever a writer is killed, kept below a size across restarts.

    FOLDER/ab/abcd...ef.kv        the object with that address (64 hex digits)
    FOLDER/ab/abcd...ef.PID-N.tmp being written: its writer holds a lock on it, which the system drops when the writer dies

Several processes may share a folder; each learns of the others' files when it asks for them and when it rescans.
"""

import asyncio
import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from netgain.serving.tiers.eviction import Eviction
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Range, Still, Usage
from netgain.serving.tiers.object import HEAD_BYTES
from netgain.serving.tiers.object_files import (
    entries,
    fault_of,
    is_object,
    open_object,
    read_into,
    remove_if_dead,
    scandir,
    shards,
    unusable,
    whole_object,
    write_whole,
)
from netgain.serving.tiers.pinning import Pinning, pins_of
from netgain.serving.tiers.staging import Staging

T = TypeVar("T")
_OBJECT = re.compile(r"[0-9a-f]{64}\.kv")
_UNFINISHED = re.compile(r"[0-9a-f]{64}\.\d+-\d+\.tmp")
_TOUCH_EVERY_S = 60.0
_SHED_AT_ONCE = 16  # files read and removed for one call
_AT_ONCE = 256  # files that a scan takes in without letting others at the bookkeeping


class DiskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`durable`: files are on the medium before they are seen, so that a power cut leaves none that is torn (they would be
    refused by their checksum anyway). `rescan_s`: how often the folder is read again for what others wrote or removed.
    `hands_down`: what is over at the start is kept until `shed` gives it up, for somebody who wants it. `tidy`: what dead
    writers left is removed at the start, and reading counts as use; False for who only looks."""

    durable: bool = True
    threads: int = 2
    rescan_s: float = 300.0
    hands_down: bool = False
    tidy: bool = True


class DiskMedium(Still):
    """At most `eviction.capacity` bytes of files; what is over at the start is evicted, oldest use first.

    Raises UsageError when the folder neither exists nor can be made. Files with other names are counted and left alone.
    """

    outlives = True

    def __init__(
        self, folder: Path, eviction: Eviction, options: DiskOptions | None = None, staging: Staging | None = None
    ) -> None:
        self._folder = folder
        self._staging = staging or Staging()
        self._eviction = eviction
        self._options = options or DiskOptions()
        self._number = itertools.count()
        self._lock = threading.Lock()  # bookkeeping; held for no system call, since the event loop may wait for it
        # held while room is made, so that who writes finds it made; taken before the other
        self._evicting = threading.Lock()
        self._evictions = self._evicted_bytes = self._leftovers = self._foreign = 0
        self._over: dict[bytes, int] = {}  # of what was over at the start and is still there, the bytes
        self._touched_s: dict[bytes, float] = {}
        self._writing: set[bytes] = set()  # whose files are not there yet
        self._given_up: GivenUp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that `given_up` is called on
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unusable(folder, "made", error) from error
        self._threads = ThreadPoolExecutor(self._options.threads + 1, thread_name_prefix="kv-disk")
        self._scanned_s = 0.0
        self._scanning = threading.Lock()
        try:
            self._scan()
        except OSError as error:
            raise unusable(folder, "read", error) from error

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._call(lambda: [self._read(key) for key in keys])

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        return await self._call(lambda: [self._read(*one) for one in wanted])

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._call(lambda: [self._read(key, 0, HEAD_BYTES, uses=False) for key in keys])

    async def write(self, key: bytes, data: Data) -> None:
        await self._call(lambda: self._write(key, data))

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        return await self._call(lambda: [is_object(self._place(key)) or self._missed(key) for key in keys])

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        eviction = self._eviction
        if not isinstance(eviction, Pinning):
            return 0
        with self._lock:
            return eviction.pin(keys, for_s, owner)

    async def remove(self, keys: Sequence[bytes]) -> int:
        return await self._call(lambda: sum([self._remove(key) for key in keys]))

    async def pages(self) -> AsyncIterator[list[bytes]]:
        for shard in await self._call(lambda: shards(self._folder)):
            there = await self._call(partial(scandir, shard))
            yield [bytes.fromhex(entry.name[:64]) for entry in there if _OBJECT.fullmatch(entry.name)]

    async def ping(self) -> None:
        await self._call(lambda: self._folder.stat())

    def on_eviction(self, given_up: GivenUp) -> bool:
        self._given_up = given_up
        return True

    async def shed(self) -> bool:
        def work() -> bool:
            with self._evicting:
                with self._lock:
                    asked = list(self._over)[:_SHED_AT_ONCE]
                    gone = [key for key in asked if self._over.pop(key) and key not in self._eviction]  # not used since
                self._drop(gone)
                return bool(self._over)

        return await self._call(work)

    def usage(self) -> Usage:
        return Usage(
            objects=len(self._eviction) + len(self._over),
            bytes=self._eviction.used_bytes + sum(self._over.values()),
            capacity_bytes=self._eviction.capacity,
            evictions=self._evictions,
            evicted_bytes=self._evicted_bytes,
            leftovers=self._leftovers,
            foreign=self._foreign,
            pins=pins_of(self._eviction),
        )

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _call(self, work: Callable[[], T]) -> T:
        self._loop = asyncio.get_running_loop()
        try:
            return await self._loop.run_in_executor(self._threads, work)
        except OSError as error:
            raise fault_of(error) from error

    def _path(self, key: bytes) -> Path:
        return Path(self._place(key))

    def _place(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._folder}/{name[:2]}/{name}.kv"

    def _read(self, key: bytes, start: int = 0, end: int | None = None, *, uses: bool = True) -> Data | None:
        """What is in a file from `start` on, up to the byte before `end` (None: to its end); None where there is none."""
        file = open_object(self._place(key))
        if file is None:
            self._missed(key)
            return None
        try:
            size = os.fstat(file).st_size
            if size > self._eviction.capacity:
                return b""  # not ours under our name: refused and removed
            room = max(0, min(size, size if end is None else end) - start)
            data = read_into(file, self._staging.room(room), start)
            if uses and start == 0:
                self._used(key, size, file)
            return data
        finally:
            os.close(file)

    def _used(self, key: bytes, size: int, file: int) -> None:
        """A file was read: it may be another process's, and its time of use outlives this process, to the minute."""
        now_s = time.monotonic()
        with self._lock:
            known = key in self._eviction
        if not known:
            self._admit(key, size)
        with self._lock:
            self._eviction.touch(key)
            if not self._options.tidy:
                return
            if now_s - self._touched_s.get(key, -_TOUCH_EVERY_S) < _TOUCH_EVERY_S:
                return
            self._touched_s[key] = now_s
        try:
            os.utime(file)
        except OSError:
            return  # a read-only folder keeps no order

    def _admit(self, key: bytes, size: int) -> None:
        """Make room for a file, and then know it: the folder never exceeds its size."""
        with self._evicting:
            with self._lock:
                gone = self._eviction.add(key, size)
            self._drop(gone)

    def _write(self, key: bytes, data: Data) -> None:
        if len(data) > self._eviction.capacity:
            raise Fault(FaultKind.TOO_LARGE, f"{len(data):,} bytes, capacity {self._eviction.capacity:,}")
        if time.monotonic() - self._scanned_s > self._options.rescan_s:
            self._rescan()
        path = self._path(key)
        if path.exists():
            return
        with self._lock:
            self._writing.add(key)
        try:
            self._admit(key, len(data))
            self._write_file(path, data)
        except BaseException:
            self._forget(key)
            raise
        finally:
            with self._lock:
                self._writing.discard(key)
        with self._lock:
            kept = key in self._eviction
        if not kept:  # it had to go while it was being written
            with self._evicting:
                self._drop([key])

    def _write_file(self, path: Path, data: Data) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # also where somebody removed the folder
        try:
            write_whole(path, next(self._number), data, durable=self._options.durable)
        except (BlockingIOError, FileNotFoundError):  # another process's scan took the file for a dead writer's
            write_whole(path, next(self._number), data, durable=self._options.durable)

    def _remove(self, key: bytes) -> bool:
        self._forget(key)
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._over.pop(key, None)
            self._eviction.remove(key)
            self._touched_s.pop(key, None)

    def _missed(self, key: bytes) -> Literal[False]:
        """No file was found: one that somebody removed takes no room, one that is being written does."""
        with self._lock:
            known = key in self._eviction and key not in self._writing
        if known and not is_object(self._path(key)):  # it was not finished meanwhile
            self._forget(key)
        return False

    def _drop(self, keys: Sequence[bytes]) -> None:
        """Unlink what the policy gave up. Called with `_evicting` held, and without the other lock."""
        with self._lock:
            for key in keys:
                self._touched_s.pop(key, None)
        for key in keys:
            path = self._path(key)
            try:
                size = path.stat().st_size
                data = None if self._given_up is None else whole_object(path)
                path.unlink()
            except OSError:
                continue  # removed by somebody else, or a read-only folder
            self._evictions += 1
            self._evicted_bytes += size
            if data is not None and self._given_up is not None and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever would store it
                    self._loop.call_soon_threadsafe(self._given_up, key, data)

    def _rescan(self) -> None:
        """Behind whoever writes: a folder of many files takes longer than a writer may be kept."""
        if not self._scanning.acquire(blocking=False):
            return

        def work() -> None:
            try:
                self._scan()
            except OSError:
                self._scanned_s = time.monotonic()  # what cannot be read now is read the next time
            finally:
                self._scanning.release()

        self._threads.submit(work)

    def _scan(self) -> None:
        """Remove what killed writers left, count what is not ours, know the rest in the order of its last use."""
        found: list[tuple[float, bytes, int]] = []
        foreign = 0
        for entry in entries(self._folder):
            if _OBJECT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append((status.st_mtime, bytes.fromhex(entry.name[:64]), status.st_size))
            elif _UNFINISHED.fullmatch(entry.name):
                self._leftovers += self._options.tidy and remove_if_dead(Path(entry.path))
            else:
                foreign += 1
        found.sort()
        there = {key: size for _, key, size in found}
        with self._evicting:  # so that nobody begins to write one meanwhile
            with self._lock:
                self._foreign = foreign
                known = [key for key in self._eviction if key not in there and key not in self._writing]
            for key in [key for key in known if not self._path(key).exists()]:
                self._forget(key)
        for start in range(0, len(found), _AT_ONCE):
            with self._evicting:
                with self._lock:
                    gone = [one for _, key, size in found[start : start + _AT_ONCE] for one in self._learn(key, size)]
                    if self._options.hands_down and not self._scanned_s:
                        self._over.update((key, there[key]) for key in gone)
                        gone = []
                self._drop(gone)
            time.sleep(0)  # whoever waits for the bookkeeping gets it
        self._scanned_s = time.monotonic()

    def _learn(self, key: bytes, size: int) -> list[bytes]:
        """Of a file that a scan found; what has to go for it. Called with the lock held."""
        if key in self._eviction or key in self._over:
            return []
        return [key] if size > self._eviction.capacity else self._eviction.add(key, size)

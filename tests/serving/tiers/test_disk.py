"""A folder of KV survives whatever happens to its processes, its files and its file system, and never uses a damaged file."""

import asyncio
import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netgain.errors import UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.disk import DiskMedium, DiskOptions
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.object import Reason, unpack
from netgain.serving.tiers.pinning import Pinning
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.samples import packed, several
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
CAPACITY = 1 << 26


def disk(
    folder: Path, capacity: int = CAPACITY, pause_s: float = 30.0, durable: bool = False, rescan_s: float = 300.0
) -> Tier:
    medium = DiskMedium(folder, LRU(capacity), DiskOptions(durable=durable, rescan_s=rescan_s))
    return Tier("disk", medium, WallClock(), TierOptions(timeout_s=20.0, pause_s=pause_s))


def file_of(folder: Path, address: bytes) -> Path:
    return folder / address.hex()[:2] / f"{address.hex()}.kv"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def child(program: str, *arguments: object, user: int | None = None) -> "subprocess.Popen[str]":
    """Another Python with our code, which has `disk`, `packed` and asyncio at hand."""
    start = "import asyncio, os, sys\nfrom pathlib import Path\nfrom tests.serving.tiers.test_disk import *\n"
    if user is not None:
        start += f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
    return subprocess.Popen(
        [sys.executable, "-c", start + program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.strip()


async def test_objects_are_found_by_the_next_process_and_only_the_user_may_read_them(tmp_path: Path) -> None:
    objects = several(range(10))
    first = disk(tmp_path / "kv")
    for address, data in objects.items():
        assert await first.put(address, data)
    await first.close()
    second = disk(tmp_path / "kv")
    assert await second.get(list(objects)) == list(objects.values())
    assert second.stats().usage.objects == 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)} == {0o600}
    assert sorted(await second.keys() or []) == sorted(objects)
    await second.close()


@pytest.mark.parametrize("harm", ["emptied", "halved", "flipped", "swapped", "foreign"])
async def test_a_harmed_file_is_a_miss_and_is_removed_and_counted(harm: str, tmp_path: Path) -> None:
    """LMCache/LMCache#3292, LMCache/LMCache#4991: short, changed or unfinished files were used or crashed the worker.
    kvcache-ai/Mooncake#3465: an evicted key was listed with an empty value."""
    tier = disk(tmp_path)
    address, data = packed(1)
    await tier.put(address, data)
    changed, reason = {
        "emptied": (b"", Reason.TORN),
        "halved": (data[: len(data) // 2], Reason.TORN),
        "flipped": (data[:-9] + bytes([data[-9] ^ 16]) + data[-8:], Reason.DAMAGED),
        "swapped": (packed(2)[1], Reason.WRONG_KEY),
        "foreign": (b"#!/bin/sh\n" * 100, Reason.FOREIGN),
    }[harm]
    file_of(tmp_path, address).write_bytes(changed)
    assert await tier.get([address]) == [None]
    assert tier.stats().refused == {reason: 1}
    assert not files(tmp_path)
    assert await tier.put(address, data)
    assert await tier.get([address]) == [data]
    await tier.close()


async def test_a_thousand_random_bit_flips_give_no_wrong_byte(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    address, data = packed(1)
    file = file_of(tmp_path, address)
    draw = random.Random(1)
    for _ in range(1000):
        await tier.put(address, data)
        bad = bytearray(data)
        bit = draw.randrange(8 * len(bad))
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        assert await tier.get([address]) == [None]
    assert sum(tier.stats().refused.values()) == 1000
    await tier.close()


async def test_a_deleted_file_is_a_miss_and_gives_its_room_back(tmp_path: Path) -> None:
    """LMCache/LMCache#4546: the count of bytes did not go down, so everything was dropped though the disk was empty."""
    objects = several(range(8))
    size = len(packed(0)[1])
    tier = disk(tmp_path, capacity=8 * size)
    for address, data in objects.items():
        await tier.put(address, data)
    for path in files(tmp_path):
        path.unlink()
    assert await tier.get(list(objects)) == [None] * 8
    assert tier.stats().usage.bytes == 0
    for number in range(100, 108):
        assert await tier.put(*packed(number))
    assert tier.stats().usage.evictions == 0
    await tier.close()


@pytest.mark.parametrize("asked", ["layers", "heads", "contains"])
async def test_a_deleted_file_gives_its_room_back_however_it_is_missed(asked: str, tmp_path: Path) -> None:
    objects = several(range(8))
    size = len(packed(0)[1])
    tier = disk(tmp_path, capacity=8 * size)
    for address, data in objects.items():
        await tier.put(address, data)
    gone = list(objects)[4:]
    for address in gone:
        file_of(tmp_path, address).unlink()
    match asked:
        case "layers":
            assert await tier.get_layers([LayeredObject(address, 192) for address in gone], 1) == [None] * 4
        case "heads":
            assert await tier.heads(gone) == [None] * 4
        case _:
            assert await tier.contains(gone) == [False] * 4
    assert tier.stats().usage.bytes == 4 * size
    for number in range(100, 104):
        assert await tier.put(*packed(number))
    assert tier.stats().usage.evictions == 0
    assert await tier.contains(list(objects)[:4]) == [True] * 4
    await tier.close()


async def test_asking_for_what_is_being_written_takes_nothing_from_the_books(tmp_path: Path) -> None:
    objects = dict(packed(number, layers=2000) for number in range(24))
    tier = disk(tmp_path, durable=True)

    async def ask() -> None:
        while tier.stats().stored.objects < len(objects):
            await tier.contains(list(objects))

    await asyncio.gather(ask(), *(tier.put(address, data) for address, data in objects.items()))
    usage = tier.stats().usage
    assert (usage.objects, usage.bytes) == (24, sum(map(len, objects.values())))
    await tier.close()


async def test_the_cap_holds_on_disk_and_after_a_restart(tmp_path: Path) -> None:
    """LMCache/LMCache#4664: a disk back end without a cap filled the disk."""
    size = len(packed(0)[1])
    tier = disk(tmp_path, capacity=10 * size)
    for number in range(200):
        assert await tier.put(*packed(number))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 10 * size
    await tier.close()
    smaller = disk(tmp_path, capacity=4 * size + 1)
    assert len(files(tmp_path)) == smaller.stats().usage.objects == 4
    kept = await smaller.get([packed(number)[0] for number in range(200)])
    assert sum(data is not None for data in kept) == 4
    await smaller.close()


async def test_what_was_used_last_survives_a_restart_with_less_room(tmp_path: Path) -> None:
    size = len(packed(0)[1])
    tier = disk(tmp_path)
    for number in range(6):
        address, data = packed(number)
        await tier.put(address, data)
        os.utime(file_of(tmp_path, address), (number, number))
    await tier.get([packed(0)[0]])
    await tier.close()
    second = disk(tmp_path, capacity=2 * size)
    assert await second.contains([packed(number)[0] for number in range(6)]) == [True, False, False, False, False, True]
    await second.close()


async def test_foreign_files_are_counted_and_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(packed(3)[1])
    folder = tmp_path / "kv"
    (folder / "ab").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "ab/README").write_text("mine too")
    link = file_of(folder, packed(3)[0])
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    tier = disk(folder)
    assert tier.stats().usage.foreign == 3
    assert await tier.get([packed(3)[0]]) == [None]
    assert (folder / "notes.txt").read_text() == "mine"
    assert outside.exists()
    await tier.close()


async def test_leftovers_of_killed_writers_go_and_files_being_written_stay(tmp_path: Path) -> None:
    address = packed(1)[0]
    dead = file_of(tmp_path, address).with_suffix(".1-1.tmp")
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"half")
    alive = dead.with_suffix("").with_suffix(".1-2.tmp")
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        tier = disk(tmp_path)
        assert files(tmp_path) == [alive]
    assert tier.stats().usage.leftovers == 1
    await tier.close()


def test_a_writer_killed_at_any_moment_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    program = (
        "async def main():\n"
        "    tier = disk(Path(sys.argv[1]), durable=True)\n"
        "    for n in range(10**6):\n"
        "        await tier.put(*packed(n, layers=20_000))\n"
        "        n == 0 and print('writing', flush=True)\n"
        "asyncio.run(main())\n"
    )
    leftovers, rounds, until_s = 0, 0, time.monotonic() + 60
    while rounds < 5 or (not leftovers and time.monotonic() < until_s):  # until one was caught in the middle
        round_, rounds = rounds, rounds + 1
        folder = tmp_path / str(round_)
        writer = child(program, folder)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(0.02 * (1 + round_ % 5))
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=PATIENCE_S)
        writer.stdout.close()
        medium = DiskMedium(folder, LRU(1 << 40))
        leftovers += medium.usage().leftovers
        left = files(folder)
        assert left, "what was finished before is there"
        for path in left:
            unpack(path.read_bytes(), bytes.fromhex(path.stem))
        asyncio.run(medium.close())
    assert leftovers > 0, "no writer was caught in the middle"


async def test_a_file_limit_in_the_middle_of_a_write_is_a_full_disk(tmp_path: Path) -> None:
    """DanEngelbrecht/golongtail#237: running out of space left files of no length."""
    program = (
        "import resource\n"
        "async def main():\n"
        "    tier = disk(Path(sys.argv[1]), pause_s=1000.0)\n"
        "    assert await tier.put(*packed(1))\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "    assert not await tier.put(*packed(2)) and not await tier.put(*packed(3))\n"
        "    assert await tier.get([packed(1)[0], packed(2)[0]]) == [packed(1)[1], None]\n"
        "    print(dict(tier.stats().unwritten), tier.stats().usage.objects, tier.usable)\n"
        "asyncio.run(main())\n"
    )
    expected = {FaultKind.FULL: 1, FaultKind.PAUSED: 1}
    assert said(child(program, tmp_path)) == f"{expected} 1 True"
    assert files(tmp_path) == [file_of(tmp_path, packed(1)[0])]


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skips where none may be mounted."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", tmp_path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


async def test_a_full_file_system_is_read_but_not_written_for_a_while(small_file_system: Path) -> None:
    tier = disk(small_file_system, pause_s=2.0)
    written = 0
    while await tier.put(*packed(written)):
        written += 1
    assert 20 < written < 200
    assert not await tier.put(*packed(written + 1))
    assert tier.stats().unwritten == {FaultKind.FULL: 1, FaultKind.PAUSED: 1}
    found = await tier.get([packed(number)[0] for number in range(written + 1)])
    assert [data is not None for data in found] == [True] * written + [False]
    assert not list(small_file_system.rglob("*.tmp"))
    await tier.delete([packed(number)[0] for number in range(5)])
    until_s = time.monotonic() + PATIENCE_S
    while not await tier.put(*packed(1000)):
        assert time.monotonic() < until_s, "it is never written again"
        time.sleep(0.05)
    await tier.close()


@pytest.fixture
def readable_by_all() -> Iterator[Path]:
    """A folder into which another user may look."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_a_read_only_folder_serves_reads_and_says_so_once(readable_by_all: Path) -> None:
    folder = readable_by_all / "kv"
    tier = disk(folder)
    for number in range(3):
        await tier.put(*packed(number))
    await tier.close()
    owner = 65_534 if os.geteuid() == 0 else None  # nothing is read-only to root
    for path in (*folder.iterdir(), *files(folder), folder):
        path.chmod(0o555)
    program = (
        "import logging\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "async def main():\n"
        "    tier = disk(Path(sys.argv[1]), pause_s=0.0)\n"
        "    assert [await tier.put(*packed(n)) for n in range(10, 13)] == [False] * 3\n"
        "    assert await tier.get([packed(n)[0] for n in range(4)]) == [*(packed(n)[1] for n in range(3)), None]\n"
        "    print(dict(tier.stats().unwritten), tier.usable)\n"
        "asyncio.run(main())\n"
    )
    first, *rest = said(child(program, folder, user=owner)).splitlines()
    assert "is read-only, objects are read but none are kept" in first
    assert rest == [f"{ {FaultKind.READ_ONLY: 3} } True"]


async def test_two_tiers_share_a_folder(tmp_path: Path) -> None:
    one, other = disk(tmp_path), disk(tmp_path)
    address, data = packed(1)
    await one.put(address, data)
    assert await other.get([address]) == [data]
    assert other.stats().usage.objects == 1
    await other.delete([address])
    assert await one.get([address]) == [None]
    assert one.stats().usage.bytes == 0
    await one.close()
    await other.close()


async def test_the_cap_holds_for_all_who_share_a_folder_after_a_rescan(tmp_path: Path) -> None:
    size = len(packed(0)[1])
    one, other = (disk(tmp_path, capacity=6 * size, rescan_s=0.0) for _ in range(2))
    for number in range(40):
        await (one if number % 2 else other).put(*packed(number))
    until_s = time.monotonic() + PATIENCE_S
    while len(files(tmp_path)) > 6:  # rescans go on behind writers
        assert time.monotonic() < until_s
        await other.put(*packed(0))
        await asyncio.sleep(0.01)
    await one.close()
    await other.close()


async def test_a_folder_of_many_files_holds_up_no_writer_when_it_is_read_again(tmp_path: Path) -> None:
    """Else each rescan of a large folder takes longer than a write may, and the tier counts as failed."""
    for shard in range(256):
        (tmp_path / f"{shard:02x}").mkdir()
    for number in range(30_000):
        name = f"{number % 256:02x}{number:062x}"
        os.close(os.open(f"{tmp_path}/{name[:2]}/{name}.kv", os.O_CREAT))
    medium = DiskMedium(tmp_path, LRU(CAPACITY), DiskOptions(durable=False, rescan_s=0.0))
    tier = Tier("disk", medium, WallClock(), TierOptions(timeout_s=0.1))
    assert all([await tier.put(*packed(number)) for number in range(20)])
    assert tier.stats().breaker_opened == 0
    assert all(data is not None for data in await tier.get([packed(number)[0] for number in range(20)]))
    await tier.close()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
async def test_what_is_no_file_under_an_objects_name_is_a_miss_and_fails_nothing(kind: str, tmp_path: Path) -> None:
    tier = disk(tmp_path / "kv")
    address, data = packed(1)
    await tier.put(*packed(2))
    place = file_of(tmp_path / "kv", address)
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").write_bytes(data)
    if kind == "link":
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
    began_s = time.monotonic()
    assert await tier.contains([address]) == [False]
    assert await tier.get([address, packed(2)[0]]) == [None, packed(2)[1]]
    assert await tier.heads([address]) == [None]
    assert time.monotonic() - began_s < 30
    assert tier.usable
    assert (tmp_path / "elsewhere").read_bytes() == data
    await tier.close()


def test_a_folder_that_may_not_be_read_is_one_clear_error(readable_by_all: Path) -> None:
    folder = readable_by_all / "kv"
    folder.mkdir(mode=0o700)
    if os.geteuid() != 0:
        folder.chmod(0o000)
    program = "try:\n    disk(Path(sys.argv[1]))\nexcept UsageError as error:\n    print(error)\n"
    answer = said(child(program, folder, user=65_534 if os.geteuid() == 0 else None))
    assert "cannot be read: Permission denied" in answer


def test_a_folder_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        DiskMedium(tmp_path / "file/kv", LRU(CAPACITY))


async def test_who_pins_or_reads_does_not_wait_while_room_is_made(tmp_path: Path) -> None:
    """The event loop, and with it the loads of all tiers, stood still while whole victims were read."""
    objects = several(range(4))
    medium = DiskMedium(tmp_path, Pinning(LRU(sum(map(len, objects.values())))), DiskOptions(durable=False))
    tier = Tier("disk", medium, WallClock(), TierOptions(timeout_s=20.0))
    for address, data in objects.items():
        assert await tier.put(address, data)
    session = next(iter(objects))
    with medium._evicting:  # as it is while a victim is read
        writing = asyncio.ensure_future(tier.put(*packed(9)))
        assert await tier.pin([session], 60.0) == 1
        assert await tier.get([session]) == [objects[session]]
        assert not writing.done()
    assert await writing
    assert len(files(tmp_path)) == 4
    assert await tier.get([session]) == [objects[session]]
    await tier.close()

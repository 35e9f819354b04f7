"""Memory for what is read is used again when nobody can see it any more, and never before."""

import random
import threading
from pathlib import Path

import numpy as np

from netgain.serving.tiers.object_files import read_into
from netgain.serving.tiers.staging import Staging


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def test_memory_is_used_again_once_the_last_part_of_it_is_dropped() -> None:
    staging = Staging(1 << 20)
    view = staging.room(100_000)
    assert len(view) == 100_000
    first, part = address(view), view[50_000:60_000]
    del view
    other = staging.room(100_000)
    assert address(other) != first
    assert staging.held >= 200_000
    del part
    assert address(staging.room(100_000)) == first
    del other
    assert staging.held == 0


def test_what_does_not_fit_is_memory_of_its_own() -> None:
    staging = Staging(1 << 16)
    held = [staging.room(1 << 15) for _ in range(5)]
    for number, view in enumerate(held):
        view[:] = bytes([number]) * len(view)
    assert [view[0] for view in held] == [view[-1] for view in held] == list(range(5))
    assert staging.held == 1 << 16
    assert len(staging.room(1 << 20)) == 1 << 20
    assert len(staging.room(0)) == 0


def test_nobody_sees_what_others_write_from_several_threads() -> None:
    staging, wrong = Staging(1 << 20), []

    def work(seed: int) -> None:
        rng, held = random.Random(seed), []
        for number in range(300):
            view = staging.room(rng.randrange(1, 200_000))
            mark = (seed * 300 + number) % 251
            view[:] = bytes([mark]) * len(view)
            held.append((view[len(view) // 2 :], mark))
            if len(held) > 4:
                part, expected = held.pop(rng.randrange(len(held)))
                wrong.extend([expected] if bytes(part).strip(bytes([expected])) else [])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert staging.held == 0


def test_a_file_that_is_shortened_while_it_is_read_gives_what_is_left(tmp_path: Path) -> None:
    path, staging = tmp_path / "file", Staging()
    path.write_bytes(bytes(range(256)) * 100)
    with path.open("r+b") as file:
        assert bytes(read_into(file.fileno(), staging.room(300), 10)) == (bytes(range(256)) * 2)[10:310]
        room = staging.room(25_600)
        file.truncate(1000)
        assert bytes(read_into(file.fileno(), room)) == (bytes(range(256)) * 4)[:1000]
        assert bytes(read_into(file.fileno(), room, 2000)) == b""

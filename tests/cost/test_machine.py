"""A probe is kept per machine, and damaged, foreign or disturbed ones never stand in for a good one."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from netgain.cost import kept
from netgain.cost.machine import (
    Machine,
    MachineProbe,
    ProductRate,
    ReadRate,
    keep_probe,
    kept_probe,
    this_machine,
    usable_cores,
)

HERE = Machine(cpu="c", cores=2, memory_bytes=1 << 34, kernel="Linux 6")


def probe(*, busy: bool = False, kernels: str = "cpp-v1", rate: float = 10e9, machine: Machine = HERE) -> MachineProbe:
    return MachineProbe(
        machine=machine,
        taken="2026-01-01T00:00:00+00:00",
        reads=tuple(
            ReadRate(threads=threads, bytes_per_s=threads * rate, array_bytes=1 << 30, repeats=5, by="C++")
            for threads in (1, 2)
        ),
        products=(ProductRate(dtype="bf16", ops_per_s=1e11, threads=2, rows=256, repeats=9, kernels=kernels),),
        busy=busy,
    )


def test_what_was_kept_is_found_on_the_same_machine_only(tmp_path: Path) -> None:
    assert kept_probe(tmp_path, HERE) is None
    keep_probe(tmp_path, probe())
    assert kept_probe(tmp_path, HERE) == probe()
    for other in (
        msgspec.structs.replace(HERE, cpu="d"),
        msgspec.structs.replace(HERE, cores=4),
        msgspec.structs.replace(HERE, memory_bytes=1),
        msgspec.structs.replace(HERE, kernel="Linux 7"),
    ):
        assert kept_probe(tmp_path, other) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 2}', b"\xff\x00"])
def test_a_damaged_file_is_no_probe_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    keep_probe(tmp_path, probe())
    [file] = (tmp_path / "machine").iterdir()
    file.write_bytes(damage or file.read_bytes()[:100])
    assert kept_probe(tmp_path, HERE) is None
    keep_probe(tmp_path, probe())
    assert kept_probe(tmp_path, HERE) == probe()


def test_the_probe_of_another_machine_under_this_name_is_not_believed(tmp_path: Path) -> None:
    keep_probe(tmp_path, probe())
    [file] = (tmp_path / "machine").iterdir()
    kept.write(file, probe(machine=msgspec.structs.replace(HERE, cores=64)))
    assert kept_probe(tmp_path, HERE) is None


def test_a_disturbed_probe_replaces_no_quiet_one_of_the_same_kernels(tmp_path: Path) -> None:
    disturbed, again = probe(busy=True, rate=2e9), probe(busy=True, rate=3e9)
    assert keep_probe(tmp_path, disturbed) == disturbed
    assert keep_probe(tmp_path, again) == again
    assert keep_probe(tmp_path, probe()) == probe()
    assert keep_probe(tmp_path, disturbed) == probe()
    assert kept_probe(tmp_path, HERE) == probe()
    newer = probe(busy=True, kernels="cpp-v2")
    assert keep_probe(tmp_path, newer) == newer


def test_the_best_thread_count_is_the_bandwidth_and_rates_belong_to_their_kernels() -> None:
    assert probe().read_bytes_per_s == 20e9
    assert probe().ops_per_s("bf16", "cpp-v1") == 1e11
    assert probe().ops_per_s("bf16", "cpp-v2") is None
    assert probe().ops_per_s("f32", "cpp-v1") is None
    assert msgspec.structs.replace(probe(), reads=()).read_bytes_per_s is None


def test_this_machine_is_the_same_every_time() -> None:
    assert this_machine() == this_machine()
    assert this_machine().cpu
    assert this_machine().cores >= 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_cores_are_those_that_may_be_used() -> None:
    def pinned() -> int:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread alone
        return usable_cores()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(pinned).result(timeout=10) == 1


def test_a_folder_keeps_the_newest_files_only(tmp_path: Path) -> None:
    for number in range(kept.MOST_FILES + 3):
        kept.write(tmp_path / f"{number}.json", HERE)
    assert len(list(tmp_path.iterdir())) == kept.MOST_FILES
    assert kept.read(tmp_path / f"{kept.MOST_FILES + 2}.json", Machine) == HERE

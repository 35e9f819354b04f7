"""Shared memory is this user's alone, and never promised larger than it is."""

import os
import threading
from pathlib import Path

import pytest

from netgain.errors import UsageError
from netgain.serving.tiers.shared_memory import check_folder, check_name, folder_of, held


def test_users_and_names_have_folders_of_their_own() -> None:
    assert folder_of("a") == Path(f"/dev/shm/netgain-kv-{os.getuid()}-a")
    assert folder_of("a") != folder_of("b")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 65, "a b"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of shared memory"):
        check_name(name)


def test_what_others_may_read_or_have_put_there_is_not_used(tmp_path: Path) -> None:
    folder = folder_of("kv", tmp_path)
    check_folder(folder, 1)
    folder.mkdir(mode=0o700)
    check_folder(folder, 1)
    folder.chmod(0o750)
    with pytest.raises(UsageError, match="is not a folder of this user alone"):
        check_folder(folder, 1)
    link = folder_of("link", tmp_path)
    folder.chmod(0o700)
    link.symlink_to(folder)
    with pytest.raises(UsageError, match="is not a folder of this user alone"):
        check_folder(link, 1)


def test_more_than_there_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not fit into .*docker run --shm-size"):
        check_folder(folder_of("kv", tmp_path), 1 << 60)


def test_a_machine_without_shared_memory_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no shared memory"):
        check_folder(folder_of("kv", tmp_path / "none"), 1)


def test_what_lies_there_is_told_by_name(tmp_path: Path) -> None:
    assert held(tmp_path) == {}
    for name, size in (("a", 5), ("b", 7)):
        folder = folder_of(name, tmp_path) / "ab"
        folder.mkdir(parents=True)
        (folder / "x.kv").write_bytes(bytes(size))
    (tmp_path / "netgain-kv-elsewhere").mkdir()
    assert held(tmp_path) == {"a": 5, "b": 7}


def test_what_goes_while_it_is_counted_is_no_fault(tmp_path: Path) -> None:
    place = folder_of("busy", tmp_path) / "ab"
    place.mkdir(parents=True)
    (place / "stays.kv").write_bytes(bytes(3))
    over = threading.Event()

    def evict() -> None:
        while not over.is_set():
            for number in range(20):
                (place / f"{number}.kv").touch()
            for number in range(20):
                (place / f"{number}.kv").unlink()

    evicting = threading.Thread(target=evict)
    evicting.start()
    try:
        assert [held(tmp_path) for _ in range(300)] == [{"busy": 3}] * 300
    finally:
        over.set()
        evicting.join()

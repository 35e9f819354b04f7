"""A kept curve stands for exactly its subject, and no damage to its file is ever taken for one."""

from pathlib import Path

import msgspec
import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.cost.step_cost_store import StepCostStore

SUBJECT = {"cpu": "c", "weights": "w", "numerics": "BF16;cpp-v1", "threads": "2", "kv_dtype": "bfloat16"}


def curve(seconds: float = 0.01, **subject: str) -> StepCost:
    return StepCost(
        points=(StepPoint(batch=1, tokens=1, context=0, seconds=seconds),),
        subject=SUBJECT | subject,
        measured_at=1.0,
    )


def test_a_curve_is_found_by_its_whole_subject(tmp_path: Path) -> None:
    store = StepCostStore(tmp_path / "new")
    assert store.load(SUBJECT) is None
    store.save(curve())
    assert store.load(dict(reversed(SUBJECT.items()))) == curve()
    for name in SUBJECT:
        assert store.load(SUBJECT | {name: "other"}) is None
    store.save(curve(threads="1"))
    assert store.load(SUBJECT) == curve()
    store.save(curve(0.02))
    assert StepCostStore(tmp_path / "new").load(SUBJECT) == curve(0.02)
    assert len(list((tmp_path / "new").iterdir())) == 2, "replaced, and nothing left beside"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: text.replace(b'"format":1', b'"format":2'),
        lambda text: text.replace(b'"seconds":0.01', b'"seconds":-1'),
        lambda text: text.replace(b'"w"', b'"v"'),
        lambda text: b"\xff" + text,
    ],
)
def test_a_damaged_or_foreign_file_is_no_curve_and_is_replaced(tmp_path: Path, damage) -> None:
    store = StepCostStore(tmp_path)
    store.save(curve())
    [file] = tmp_path.iterdir()
    damaged = damage(file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    assert store.load(SUBJECT) is None
    store.save(curve())
    assert store.load(SUBJECT) == curve()


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = StepCostStore(tmp_path / "file" / "folder")
    assert store.load(SUBJECT) is None
    with pytest.raises(OSError):
        store.save(curve())


def test_a_curve_keeps_its_date(tmp_path: Path) -> None:
    undated = msgspec.structs.replace(curve(), measured_at=None)
    StepCostStore(tmp_path).save(undated)
    found = StepCostStore(tmp_path).load(SUBJECT)
    assert found is not None
    assert found.measured_at is None

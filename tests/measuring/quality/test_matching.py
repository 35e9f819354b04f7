"""What counts as a right answer, by rule."""

import json

import pytest

from netgain.errors import UsageError
from netgain.measuring.quality.matching import chosen, grade
from netgain.measuring.quality.tasks import Task, load_tasks


def right(answer: str, **fields: object) -> bool:
    return grade(Task(id="t", prompt="q", **fields), answer) == 1.0  # type: ignore[arg-type]


def test_exact_forgives_white_space_only() -> None:
    assert right(" Paris\n", match="exact", expected="Paris")
    assert not right("Paris.", match="exact", expected="Paris")
    assert not right("paris", match="exact", expected="Paris")
    assert right("PARIS", match="exact", expected="Paris", ignore_case=True)


def test_contains_takes_any_of_several() -> None:
    assert right("It is in France.", match="contains", expected=["Germany", "France"])
    assert not right("It is in Spain.", match="contains", expected="France")


@pytest.mark.parametrize(
    ("answer", "expected", "tolerance", "ok"),
    [
        ("12 apples and 30 pears make 42.", 42, 0.0, True),
        ("1,234.50 euros", 1234.5, 0.0, True),
        ("about 3.14", 3.14159, 0.01, True),
        ("about 3.1", 3.14159, 0.01, False),
        ("x = −7", -7, 0.0, True),
        ("6.02e23", 6.02e23, 0.0, True),
        (".5", 0.5, 0.0, True),
        ("no idea", 0, 0.0, False),
    ],
)
def test_the_last_number_counts(answer: str, expected: float, tolerance: float, ok: bool) -> None:
    assert right(answer, match="number", expected=expected, tolerance=tolerance) is ok


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("B", "B"),
        ("(b) because", "B"),
        ("**C**", "C"),
        ("The answer is D.", "D"),
        ("A is wrong, so the answer is: B", "B"),
        ("I would say C", "C"),
        ("Between B and C", None),
        ("All of them", None),
        ("", None),
    ],
)
def test_the_choice_that_is_named_is_read(answer: str, found: str | None) -> None:
    assert chosen(("A", "B", "C", "D"), answer) == found


def test_json_is_compared_as_data() -> None:
    expected = {"name": "Ada", "ages": [1, 2.0]}
    assert right('Here:\n```json\n{"ages": [1.0, 2], "name": "Ada"}\n```', match="json", expected=expected)
    assert not right('{"name": "Ada", "ages": [2, 1]}', match="json", expected=expected)
    assert not right("{broken", match="json", expected=expected)
    assert not right("1", match="json", expected=True)


def test_the_type_of_what_is_expected_says_the_rule(tmp_path) -> None:
    lines = [
        {"id": "a", "prompt": "q", "expected": 3},
        {"id": "b", "prompt": "q", "expected": "x"},
        {"id": "c", "prompt": "q", "expected": ["x", "y"]},
        {"id": "d", "prompt": "q", "expected": "x", "choices": ["x", "y"]},
        {"id": "e", "prompt": "q", "expected": {"x": 1}},
        {"id": "f", "messages": [{"role": "user", "content": "q"}], "match": "regex", "expected": "^x"},
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [task.match for task in load_tasks(path, scorer=False)] == [
        "number", "exact", "contains", "choice", "json", "regex",
    ]  # fmt: skip
    assert [task.match for task in load_tasks(path, scorer=True)] == ["scorer"] * 5 + ["regex"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "a", "prompt": "q", "expected": "x", "mtach": "exact"}', "mtach"),
        ('{"id": "a", "prompt": "q", "match": "exact"}', "exact needs a text"),
        ('{"id": "a", "expected": "x"}', "either messages or prompt"),
        ('{"id": "a", "prompt": "q", "expected": "(", "match": "regex"}', "no regular expression"),
        ('{"id": "a", "prompt": "q", "expected": "z", "choices": ["x", "y"]}', "none of the choices"),
        ('{"id": "a", "prompt": "q", "expected": 1, "tolerance": -1}', "tolerance is -1"),
        ('{"id": "a", "prompt": "q", "match": "scorer"}', "--scorer"),
        ('{"id": "b", "prompt": "q", "expected": 1}\n{"id": "b", "prompt": "q", "expected": 1}', "stands in line 1"),
        ("[]", "line 1"),
        ("", "empty"),
    ],
)
def test_a_task_that_cannot_be_judged_is_refused_by_its_line(tmp_path, line: str, said: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=said):
        load_tasks(path, scorer=False)

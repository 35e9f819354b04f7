"""The soak's own judgement: it must see what is wrong, and take for wrong nothing that belongs to its own doing."""

import pytest

from benchmarks.soak.judging import check, settle
from benchmarks.soak.level import Level
from benchmarks.soak.world import Outcome, Reference, Tally, World

REFERENCE = Reference((5, 6, 7), "one two three")


@pytest.fixture
def world() -> World:
    return World(url="", key="", poor_key="", operator_key="", tally=Tally(), hung_after_s=1.0, down_until_s=100.0)


def whole(text: str = "one two three", ids: tuple[int, ...] | None = (5, 6, 7)) -> Outcome:
    return Outcome(200, texts={0: text}, ids=ids, complete=True)


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        (whole(), 0),
        (whole("one", (5,)), 0),  # it was cut
        (whole("one t�", None), 0),  # in the middle of a character
        (whole(ids=(5, 9, 9)), 2),
        (whole(ids=(5, 6, 7, 8)), 1),
        (whole("one two four", None), 1),
        (Outcome(200, texts={0: "one", 1: "uno"}), 1),
    ],
)
def test_every_other_token_or_text_is_counted(world: World, outcome: Outcome, wrong: int) -> None:
    check(world, outcome, REFERENCE, "test")
    assert world.tally.wrong == wrong


def test_nothing_behind_a_stop_string_may_be_there(world: World) -> None:
    check(world, whole("one ", None), REFERENCE, "test", stop="two")
    assert world.tally.wrong == 0
    check(world, whole("one t", None), REFERENCE, "test", stop="two")
    assert world.tally.wrong == 1


@pytest.mark.parametrize(
    ("outcome", "started_s", "also", "unexpected"),
    [
        (whole(), 200.0, (), 0),
        (Outcome(200, complete=False), 200.0, (), 1),  # a stream without its end
        (Outcome(429, error="queue_full", retry_after="2"), 200.0, (), 0),
        (Outcome(429, error="queue_full"), 200.0, (), 1),
        (Outcome(429, error="tokens_limit_exceeded", retry_after="2"), 200.0, (), 1),
        (Outcome(429, error="tokens_limit_exceeded", retry_after="2"), 200.0, ("tokens_limit_exceeded",), 0),
        (Outcome(503, error="engine_unavailable"), 99.0, (), 0),  # the engine was killed
        (Outcome(503, error="engine_unavailable"), 101.0, (), 1),  # and has been back for a while
        (Outcome(500, error="internal_error"), 99.0, (), 1),
    ],
)
def test_only_what_the_soak_caused_is_excused(
    world: World, outcome: Outcome, started_s: float, also: tuple[str, ...], unexpected: int
) -> None:
    settle(world, outcome, started_s, "test", also)
    assert world.tally.outcomes["unexpected"] == unexpected


def test_only_growth_counts_as_a_leak() -> None:
    base = Level(0, {"http_files": 10, "http_threads": 5}, 0, 1, 0)
    later = Level(0, {"http_files": 12, "http_threads": 4, "http_tasks": 1}, 0, 1, 0)
    assert later.above(base) == {"http_files": 2, "http_tasks": 1}

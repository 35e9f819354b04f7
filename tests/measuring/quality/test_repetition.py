"""Loops are told from ordinary repetition."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.quality.repetition import is_looped, looping_share


def test_a_sentence_said_over_and_over_loops() -> None:
    output = "The answer is simple . " * 1 + "I am sorry , I do not know . " * 5
    assert looping_share(output.split()) > 0.8
    assert is_looped(output.split())


def test_text_without_loops_has_share_zero() -> None:
    assert looping_share(list(range(300))) == 0.0
    assert looping_share([]) == 0.0


def test_ordinary_repetition_is_no_loop() -> None:
    assert looping_share(["no", ",", "no", ",", "no", ",", "said", "the", "king"]) == 0.0
    assert looping_share([5] * 15) == 0.0
    paragraph = list(range(100))
    assert looping_share(paragraph + paragraph) == 0.0  # said twice


def test_the_loop_alone_is_counted_also_in_the_middle() -> None:
    tokens = [*range(100, 140), *([1, 2, 3, 4, 5] * 8), *range(200, 240)]
    assert looping_share(tokens) == 40 / 120


def test_a_cut_last_repeat_belongs_to_the_loop() -> None:
    tokens = [*range(100, 120), *([1, 2, 3, 4, 5, 6, 7] * 4), 1, 2, 3]
    assert looping_share(tokens) == 31 / 51


@given(st.lists(st.integers(0, 3), max_size=120))
def test_share_is_a_share(tokens: list[int]) -> None:
    assert 0.0 <= looping_share(tokens) <= 1.0


@given(st.lists(st.integers(0, 9), min_size=6, max_size=64), st.integers(3, 5))
def test_every_short_period_repeated_three_times_loops_whole(period: list[int], times: int) -> None:
    assert looping_share(period * times) == 1.0

"""A tier that waits for a second use takes exactly what is used twice, and remembers a bounded number of keys."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.admission import SecondUse


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * 4


def test_the_second_use_admits_and_so_does_every_later_one() -> None:
    rule = SecondUse()
    assert [rule.computed(key(1)) for _ in range(4)] == [False, True, True, True]
    assert not rule.computed(key(2))


def test_use_on_the_device_stores_once() -> None:
    """What is reused where it lies is never computed again, so that would not tell."""
    rule = SecondUse()
    assert not rule.computed(key(1))
    assert [rule.used(key(1)) for _ in range(3)] == [True, False, False]
    assert rule.computed(key(1)), "it was lost by all, and has been used before"


def test_a_stream_of_new_prompts_is_forgotten_in_bounded_memory() -> None:
    rule = SecondUse(keys=100)
    rule.computed(key(0))
    for number in range(1, 1000):
        assert not rule.computed(key(number))
        assert rule.remembered <= 200
    assert not rule.computed(key(0)), "its first use is too long ago"


@given(st.lists(st.integers(0, 20), max_size=60))
def test_as_long_as_nothing_is_forgotten_it_is_what_was_seen_before(numbers: list[int]) -> None:
    rule = SecondUse(keys=100)
    seen: set[int] = set()
    for number in numbers:
        assert rule.computed(key(number)) == (number in seen)
        seen.add(number)


@given(st.lists(st.integers(0, 30), max_size=200))
def test_the_last_uses_are_always_known(numbers: list[int]) -> None:
    """A key comes back after fewer others than a generation has: it is never taken for new."""
    rule = SecondUse(keys=10)
    for place, number in enumerate(numbers):
        again = rule.computed(key(number))
        if number in numbers[max(0, place - 9) : place]:
            assert again


def test_what_was_lost_for_want_of_room_is_stored_at_its_next_use() -> None:
    rule = SecondUse()
    rule.computed(key(1))
    assert rule.used(key(1))
    rule.lost(key(1))
    assert [rule.used(key(1)) for _ in range(2)] == [True, False]
    rule.lost(key(1))
    assert rule.computed(key(1))

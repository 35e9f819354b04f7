"""Whatever the policy, no more than the capacity is kept, and what is kept is what was not given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.eviction import ARC, LRU, POLICIES


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(st.tuples(st.sampled_from(["add", "touch", "remove"]), st.integers(0, 12), st.integers(1, 40))))
def test_bytes_kept_never_exceed_the_capacity(policy: str, operations: list[tuple[str, int, int]]) -> None:
    eviction = POLICIES[policy](100)
    model: dict[bytes, int] = {}
    for operation, number, size in operations:
        one = key(number)
        if operation == "add":
            gone = eviction.add(one, size)
            assert one not in gone
            model[one] = size
            for other in gone:
                del model[other]
        elif operation == "touch":
            eviction.touch(one)
        else:
            assert eviction.remove(one) == model.pop(one, 0)
        assert set(eviction) == model.keys()
        assert len(eviction) == len(model)
        assert eviction.used_bytes == sum(model.values()) <= 100
        assert all(eviction.size(one) == size and one in eviction for one, size in model.items())


@pytest.mark.parametrize("policy", POLICIES)
def test_what_can_never_fit_is_an_error_and_evicts_nothing(policy: str) -> None:
    eviction = POLICIES[policy](100)
    eviction.add(key(1), 60)
    with pytest.raises(ValueError, match="101"):
        eviction.add(key(2), 101)
    assert key(1) in eviction


def test_lru_gives_up_what_was_used_longest_ago() -> None:
    eviction = LRU(3)
    for number in (1, 2, 3):
        eviction.add(key(number), 1)
    eviction.touch(key(1))
    assert eviction.add(key(4), 1) == [key(2)]


def test_a_scan_leaves_what_arc_saw_used_again() -> None:
    eviction = ARC(10)
    for number in range(4):
        eviction.add(key(number), 1)
        eviction.touch(key(number))
    for number in range(100, 200):
        eviction.add(key(number), 1)
    assert all(key(number) in eviction for number in range(4))


def test_arc_makes_room_for_what_it_gave_up_too_early() -> None:
    eviction = ARC(4)
    for number in range(2):
        eviction.add(key(number), 1)
        eviction.touch(key(number))
    for number in (10, 11, 12, 10, 11, 12) * 3:
        eviction.add(key(number), 1)
    assert sum(key(number) in eviction for number in (10, 11, 12)) == 3

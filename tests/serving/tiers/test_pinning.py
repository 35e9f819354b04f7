"""Pinned keys stay until their time is over, within their share, and whatever the policy the tier never exceeds its room."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.ledger.clock import WallClock
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU, POLICIES
from netgain.serving.tiers.medium import Medium
from netgain.serving.tiers.pinning import Pinning
from netgain.serving.tiers.tier import Tier
from tests.serving.tiers.samples import packed, several


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


OPERATIONS = st.tuples(
    st.sampled_from(["add", "touch", "remove", "pin", "wait"]), st.integers(0, 12), st.integers(1, 40)
)


@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(OPERATIONS, max_size=60))
def test_no_pinned_key_goes_and_no_more_than_the_capacity_is_kept(
    policy: str, operations: list[tuple[str, int, int]]
) -> None:
    time = Time()
    eviction = Pinning(POLICIES[policy](100), now_s=time)
    model: dict[bytes, int] = {}
    pinned: dict[bytes, float] = {}
    for operation, number, size in operations:
        one = key(number)
        if operation == "add":
            gone = eviction.add(one, size)
            model[one] = size
            assert not {other for other in gone if pinned.get(other, 0.0) > time.now_s}
            for other in gone:
                del model[other]
            pinned.pop(one, None)  # of another size it may be beyond the share
        elif operation == "touch":
            eviction.touch(one)
        elif operation == "remove":
            assert eviction.remove(one) == model.pop(one, 0)
            pinned.pop(one, None)
        elif operation == "wait":
            time.now_s += size
        elif eviction.pin([one], for_s=float(size)):
            pinned[one] = max(pinned.get(one, 0.0), time.now_s + size)
        assert set(eviction) == model.keys()
        assert len(eviction) == len(model)
        assert eviction.used_bytes == sum(model.values()) <= 100
        assert eviction.pinned_bytes <= 50
        assert all(eviction.size(name) == size and name in eviction for name, size in model.items())


def test_a_pinned_prefix_survives_a_flood_and_goes_after_its_time() -> None:
    time = Time()
    eviction = Pinning(LRU(10), now_s=time)
    for number in range(3):
        eviction.add(key(number), 1)
    assert eviction.pin([key(0), key(1)], for_s=60.0) == 2
    for number in range(100, 200):
        eviction.add(key(number), 1)
    assert key(0) in eviction
    assert key(1) in eviction
    assert key(2) not in eviction
    time.now_s = 61.0
    for number in range(200, 300):
        eviction.add(key(number), 1)
    assert key(0) not in eviction
    assert eviction.pinned_bytes == 0


def test_what_is_pinned_before_it_is_stored_is_pinned_when_it_comes() -> None:
    eviction = Pinning(LRU(10), now_s=Time())
    assert eviction.pin([key(1)], for_s=60.0) == 0
    eviction.add(key(1), 2)
    for number in range(100, 120):
        eviction.add(key(number), 1)
    assert key(1) in eviction


def test_beyond_their_share_pins_keep_nothing() -> None:
    eviction = Pinning(LRU(10), share=0.3, now_s=Time())
    for number in range(10):
        eviction.add(key(number), 1)
    assert eviction.pin([key(number) for number in range(10)], for_s=60.0) == 3


def test_a_pin_never_keeps_out_what_fits_into_the_tier() -> None:
    """LMCache/LMCache#2942: storing waited for ever where all was pinned."""
    eviction = Pinning(LRU(10), now_s=Time())
    eviction.add(key(1), 4)
    eviction.pin([key(1)], for_s=60.0)
    eviction.add(key(2), 9)
    assert key(2) in eviction
    assert eviction.used_bytes <= 10


@pytest.mark.parametrize("kind", ["dram", "disk"])
async def test_a_tier_keeps_what_was_pinned(kind: str, tmp_path: Path) -> None:
    size = len(packed(0)[1])
    eviction = Pinning(LRU(10 * size))
    medium: Medium = DramMedium(eviction) if kind == "dram" else DiskMedium(tmp_path, eviction)
    tier = Tier(kind, medium, WallClock())
    session = packed(0)[0]
    await tier.put(*packed(0))
    assert await tier.pin([session], for_s=600.0) == 1
    for address, data in several(range(1, 40)).items():
        await tier.put(address, data)
    assert (await tier.get([session]))[0] is not None
    assert tier.stats().usage.objects == 10
    await tier.close()


def test_pinning_the_same_keys_again_and_again_takes_no_more_memory() -> None:
    time = Time()
    eviction = Pinning(LRU(1000), now_s=time)
    session = [key(number) for number in range(50)]
    for one in session:
        eviction.add(one, 1)
    tracemalloc.start()
    for _ in range(3):  # what is pinned at all
        eviction.pin(session, for_s=600.0)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(200):
        time.now_s += 1.0
        assert eviction.pin(session, for_s=600.0) == 50
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000, "not 10,000 entries more"
    time.now_s += 599.0
    eviction.pin([], for_s=1.0)
    assert eviction.pinned_bytes == 50, "they end when the last pin does"
    time.now_s += 1.0
    eviction.pin([], for_s=1.0)
    assert eviction.pinned_bytes == 0


def filled(eviction: Pinning, numbers: range) -> list[bytes]:
    """Keys that are kept."""
    keys = [key(number) for number in numbers]
    for one in keys:
        eviction.add(one, 1)
    return keys


def test_a_tenant_may_pin_what_is_free_and_gives_it_back_when_others_ask_for_their_part() -> None:
    eviction = Pinning(LRU(1000), share=0.12, now_s=Time())
    first, second, third = (filled(eviction, range(start, start + 120)) for start in (0, 200, 400))
    assert eviction.pin(first, 60.0, "a") == 120, "nobody else asks"
    assert eviction.pin(second, 60.0, "b") == 60
    assert sum(one in eviction._sizes for one in first) == 60
    assert first[0] in eviction._sizes, "what was pinned last goes first"
    assert first[-1] in eviction, "and is kept as any other"
    assert eviction.pin(third, 60.0, "c") == 40
    assert [sum(one in eviction._sizes for one in keys) for keys in (first, second, third)] == [40, 40, 40]
    assert eviction.pin(first, 60.0, "a") == 40, "nobody takes more than an equal part from others"
    use = eviction.use
    assert (use.bytes, use.room_bytes, use.tenants) == (120, 120, 3)
    assert use.taken_back == 100
    assert use.refused > 0


def test_a_pin_that_was_given_back_is_not_taken_up_again_by_storing() -> None:
    eviction = Pinning(LRU(100), share=0.04, now_s=Time())
    mine, yours = filled(eviction, range(4)), filled(eviction, range(10, 14))
    eviction.pin(mine, 60.0, "a")
    eviction.pin(yours, 60.0, "b")
    held = [one for one in mine if one in eviction._sizes]
    for one in mine:
        eviction.add(one, 1)
    assert [one for one in mine if one in eviction._sizes] == held == mine[:2]


def test_the_part_of_who_has_no_pins_any_more_is_free_again() -> None:
    time = Time()
    eviction = Pinning(LRU(100), share=0.1, now_s=time)
    mine, yours = filled(eviction, range(10)), filled(eviction, range(20, 30))
    eviction.pin(mine, 60.0, "a")
    eviction.pin(yours, 10.0, "b")
    time.now_s = 11.0
    assert eviction.pin(mine, 60.0, "a") == 10


def test_pins_of_what_is_still_to_be_stored_are_shared_out_as_well() -> None:
    eviction = Pinning(LRU(1000), now_s=Time(), wanted=10)
    eviction.pin([key(number) for number in range(20)], 60.0, "a")
    yours = [key(number) for number in range(100, 105)]
    eviction.pin(yours, 60.0, "b")
    for one in yours:
        eviction.add(one, 1)
    assert [one in eviction._sizes for one in yours] == [True] * 5


async def test_a_refusal_is_said_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    size = len(packed(0)[1])
    tier = Tier("dram", DramMedium(Pinning(LRU(10 * size))), WallClock())
    sessions = several(range(10))
    for address, data in sessions.items():
        await tier.put(address, data)
    for _ in range(2):
        await tier.pin(list(sessions), 60.0, "acme")
    (said,) = [record.getMessage() for record in caplog.records if "pin" in record.getMessage()]
    assert "or make the tier larger" in said
    use = tier.stats().usage.pins
    assert use is not None
    assert use.refused > 0
    await tier.close()

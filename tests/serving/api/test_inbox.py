"""What comes in is looked at in order, once, by whoever can: at once where that is enough, else by the reader itself."""

import asyncio

import pytest

from netgain.serving.api.inbox import Inbox


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_dealt_with_at_once_wakes_nobody() -> None:
    inbox: Inbox[int] = Inbox()
    looks: list[list[int]] = []

    def at_once() -> bool:
        looks.append(list(inbox.items))
        inbox.items.clear()
        return True

    reader = asyncio.create_task(inbox.wait(at_once))
    await turns()
    for item in (1, 2, 3):  # in one turn of the event loop
        inbox.put(item)
    await turns()
    inbox.put(4)
    await turns()
    assert looks == [[1, 2, 3], [4]]
    assert not reader.done()
    reader.cancel()


async def test_what_cannot_be_dealt_with_at_once_is_the_readers() -> None:
    inbox: Inbox[int] = Inbox()
    reader = asyncio.create_task(inbox.wait(lambda: inbox.items[0] < 5 and bool(inbox.items.popleft() + 1)))
    await turns()
    inbox.put(3)
    await turns()
    assert not reader.done()
    inbox.put(5)
    inbox.put(6)
    await reader
    assert list(inbox.items) == [5, 6]


async def test_a_fault_is_raised_where_the_reader_waits_and_the_rest_is_kept() -> None:
    inbox: Inbox[int] = Inbox()

    def at_once() -> bool:
        while inbox.items:
            assert inbox.items.popleft() < 5, "too much"
        return True

    reader = asyncio.create_task(inbox.wait(at_once))
    await turns()
    for item in (1, 9, 2):
        inbox.put(item)
    with pytest.raises(AssertionError, match="too much"):
        await reader
    assert list(inbox.items) == [2]


async def test_what_came_while_nobody_waited_is_there_without_waiting() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    await asyncio.wait_for(inbox.wait(lambda: pytest.fail("the reader is at work itself")), 1)
    assert inbox.items.popleft() == 1


async def test_a_reader_that_gave_up_takes_nothing() -> None:
    inbox: Inbox[int] = Inbox()
    reader = asyncio.create_task(inbox.wait(lambda: bool(inbox.items.popleft())))
    await turns()
    reader.cancel()
    inbox.put(1)
    with pytest.raises(asyncio.CancelledError):
        await reader
    await turns()
    assert list(inbox.items) == [1]
    await asyncio.wait_for(inbox.wait(), 1)

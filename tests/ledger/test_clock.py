"""Virtual time moves only when nothing can run, in one order, and says so when nothing ever will."""

import asyncio
import time

import pytest

from netgain.ledger.clock import VirtualClock, WallClock


async def test_sleepers_wake_in_order_of_time_then_of_call() -> None:
    clock = VirtualClock(100.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async def main() -> str:
        await asyncio.gather(sleeper("late", 3.0), sleeper("tie, first", 1.0), sleeper("tie, second", 1.0))
        return "done"

    began = time.monotonic()
    assert await clock.run(asyncio.create_task(main())) == "done"
    assert woken == [("tie, first", 101.0), ("tie, second", 101.0), ("late", 103.0)]
    assert time.monotonic() - began < 3.0, "nobody really sleeps"


async def test_time_stands_still_while_a_long_chain_of_tasks_runs() -> None:
    clock = VirtualClock()
    queues: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in range(200)]

    async def link(index: int) -> None:
        queues[index + 1].put_nowait(await queues[index].get())

    async def main() -> float:
        links = [asyncio.create_task(link(index)) for index in range(199)]
        distraction = asyncio.create_task(clock.sleep(1.0))
        queues[0].put_nowait(clock.now())
        await queues[199].get()
        arrived = clock.now()
        await asyncio.gather(*links, distraction)
        return arrived

    assert await clock.run(asyncio.create_task(main())) == 0.0
    assert clock.now() == 1.0


async def test_a_cancelled_sleeper_does_not_move_time() -> None:
    clock = VirtualClock()

    async def main() -> None:
        sleeper = asyncio.create_task(clock.sleep(1000.0))
        await clock.sleep(1.0)
        sleeper.cancel()
        await clock.sleep(1.0)

    await clock.run(asyncio.create_task(main()))
    assert clock.now() == 2.0


async def test_a_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    clock = VirtualClock()

    async def waits_for_nobody() -> None:
        await clock.sleep(1.0)
        await asyncio.get_running_loop().create_future()

    main = asyncio.create_task(waits_for_nobody())
    with pytest.raises(RuntimeError, match=r"at 1\.0 s.*waits_for_nobody"):
        await clock.run(main)
    with pytest.raises(asyncio.CancelledError):
        await main


async def test_an_error_of_the_main_task_is_raised() -> None:
    clock = VirtualClock()

    async def main() -> None:
        await clock.sleep(1.0)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await clock.run(asyncio.create_task(main()))


async def test_negative_sleep_is_no_sleep() -> None:
    clock = VirtualClock(5.0)
    await clock.run(asyncio.create_task(clock.sleep(-1.0)))
    assert clock.now() == 5.0
    wall = WallClock()
    before = wall.now()
    await wall.sleep(-1.0)
    assert 0.0 <= wall.now() - before < 0.5

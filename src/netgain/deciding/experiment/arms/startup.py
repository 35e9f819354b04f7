"""Starting the arms of an experiment, first and again: one at a time, those that already run kept from disturbing it."""

import time
from collections.abc import Callable, Mapping, Sequence

from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.idle import give_turn
from netgain.errors import NetgainError


async def bring_up(arm: Arm, timeout_s: float) -> None:
    """Raises Unavailable when it does not serve within `timeout_s`."""
    await arm.start()
    await arm.ready(timeout_s)


async def bring_up_others(arms: Mapping[str, Arm], running: str, timeout_s: float) -> float:
    """Start all but the one that runs already, one at a time. Seconds that it takes to start all of them, so judged."""
    began_s = time.monotonic()
    others = [name for name in arms if name != running]
    for name in others:
        give_turn(arms, name)
        await bring_up(arms[name], timeout_s)
    give_turn(arms, None)
    return (time.monotonic() - began_s) * len(arms) / len(others)


async def start_again(arms: Mapping[str, Arm], start: int, timeout_s: float) -> None:
    """End all arms and start them in the order of this start: where a server that is started first is slower or faster, the
    design cancels it."""
    for arm in arms.values():
        await arm.stop()
    for name in starting_order(tuple(arms), start):
        give_turn(arms, name)
        await bring_up(arms[name], timeout_s)
    give_turn(arms, None)


def starting_order(names: Sequence[str], start: int) -> tuple[str, ...]:
    """From either end in turns, so that of any two each is before the other as often; of three and more the order also moves on
    by one place after every two starts, so that none keeps to the middle (in six starts each of three has each place twice)."""
    moved = start // 2 % len(names) if len(names) > 2 else 0
    order = (*names[moved:], *names[:moved])
    return order if start % 2 == 0 else order[::-1]


async def end(arm: Arm, said: Callable[[str], object]) -> None:
    """Stop it at the end of a run. One that does not end as it should is told of, and must not cost a result that took hours."""
    try:
        await arm.stop()
    except NetgainError as error:
        said(f"The {arm.name} server did not end as it should: {error}")

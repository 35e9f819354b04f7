"""Starting the arms of an experiment, first and again: one at a time, those that already run kept from disturbing it."""

import time
from collections.abc import Callable, Mapping

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
    """End all arms and start them from either end in turns: where a server that is started first is slower or faster, the
    design cancels it."""
    for arm in arms.values():
        await arm.stop()
    for name, arm in list(arms.items())[:: 1 if start % 2 == 0 else -1]:
        give_turn(arms, name)
        await bring_up(arm, timeout_s)
    give_turn(arms, None)


async def end(arm: Arm, said: Callable[[str], object]) -> None:
    """Stop it at the end of a run. One that does not end as it should is told of, and must not cost a result that took hours."""
    try:
        await arm.stop()
    except NetgainError as error:
        said(f"The {arm.name} server did not end as it should: {error}")

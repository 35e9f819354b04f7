"""The two sides of a comparison as arms: servers that run already, and servers that are started here and ended again."""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec

from netgain.deciding.compare.meeting import Known
from netgain.deciding.compare.running import RunningServer
from netgain.deciding.compare.settings import Settings
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.arms.confounders import UNTOLD, ArmSetup, differences, known_confounders, listed
from netgain.deciding.experiment.arms.described import Described, launched
from netgain.deciding.experiment.arms.idle import SPINNING, find_spinners, give_turn
from netgain.deciding.experiment.arms.port import check_free
from netgain.deciding.experiment.arms.startup import bring_up, end
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.measurement.server import Met
from netgain.measuring.observe.names import known_engine


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that were started here, by side. `start_s`: mean seconds until one served; 0 where none was started.
    `spinning`: those that use a core while idle, which are frozen while others are loaded."""

    arms: dict[str, Arm]
    start_s: float
    spinning: tuple[str, ...]


def check_ports(started: Mapping[str, Described]) -> None:
    """Raises UsageError when something listens at a port that an arm pins: before the first one is started."""
    for name, described in started.items():
        if described.port is not None:
            check_free(described.port, name)


async def start_sides(settings: Settings, stack: AsyncExitStack, narrator: Narrator) -> Started:
    """One after another, those that spin frozen meanwhile; the stack ends them, also those that never served."""
    arms = {
        name: launched(described, name, settings.output, headers=_headers(settings, name))
        for name, described in settings.started.items()
    }
    took_s: list[float] = []
    spinning: tuple[str, ...] = ()
    for name, arm in arms.items():
        stack.push_async_callback(end, arm, narrator.found)
        narrator.phase(f"starting the {name} server")
        give_turn(arms, name)
        began_s = time.monotonic()
        await bring_up(arm, settings.start_timeout_s)
        took_s.append(time.monotonic() - began_s)
        spinning += await find_spinners((arm,))
    give_turn(arms, None)
    return Started(arms=arms, start_s=sum(took_s) / len(took_s) if took_s else 0.0, spinning=spinning)


def _headers(settings: Settings, name: str) -> Mapping[str, str]:
    return (settings.baseline if name == BASELINE else settings.candidate).headers


async def all_arms(
    settings: Settings,
    stack: AsyncExitStack,
    started: Started,
    met: Mapping[str, Met],
    may_reset: bool,
    with_control: bool,
    narrator: Narrator,
) -> dict[str, Arm]:
    """Baseline, candidate and, where it is asked for, the baseline once more: a second start of it, or the same URL."""
    arms: dict[str, Arm] = {}
    for name in (BASELINE, CANDIDATE):
        own = started.arms.get(name)
        arms[name] = own if own is not None else _running(met[name], name, may_reset, met[name].metrics_url)
    if with_control:
        described = settings.started.get(BASELINE)
        if described is None:
            arms[CONTROL] = _running(met[BASELINE], CONTROL, may_reset, None)
        else:
            beside = msgspec.structs.replace(described, port=None)  # a pinned port is the baseline's
            arms[CONTROL] = launched(beside, CONTROL, settings.output, headers=_headers(settings, BASELINE))
    for name, arm in arms.items():
        if name not in started.arms:
            stack.push_async_callback(end, arm, narrator.found)
    control = arms.get(CONTROL)
    if control is not None and BASELINE in started.arms:
        give_turn(arms, CONTROL)
        await bring_up(control, settings.start_timeout_s)
        await find_spinners((control,))
        give_turn(arms, None)
    return arms


def attached(met: Met, name: str, may_reset: bool) -> AttachedServer:
    """A running server as it was met."""
    return AttachedServer(name, met.base, known_engine(met.server.engine), may_reset, dict(met.options.headers))


def _running(met: Met, name: str, may_reset: bool, metrics_url: str | None) -> RunningServer:
    engine = known_engine(met.server.engine)
    return RunningServer(attached(met, name, may_reset), metrics_url, met.server.model, engine)


def what_differs(known: Mapping[str, Known]) -> tuple[str, ...]:
    """What two servers of one engine say of their settings, and what is known to change behind one's back. Of two that were
    started their flags and logs are known, too; else both are taken as a client sees them."""
    before, after = known[BASELINE], known[CANDIDATE]
    engine = known_engine(before.greeted.server.engine)
    if (
        engine is None
        or engine != known_engine(after.greeted.server.engine)
        or before.greeted.base == after.greeted.base
    ):
        return ()
    setups = [one.setup for one in (before, after) if one.setup is not None]
    if len(setups) < 2:
        setups = [_seen(BASELINE, before), _seen(CANDIDATE, after)]
    found = known_confounders(engine, *setups)
    told = [setup.configuration for setup in setups]
    if told[0] is None or told[1] is None:
        return (*found, UNTOLD.format(engine=engine))
    differ = differences(told[0], told[1])
    found += [f"Settings that differ, speculation's own aside: {listed(differ)}."] if differ else []
    return tuple(found)


def _seen(name: str, known: Known) -> ArmSetup:
    said = {field: str(value) for field, value in known.greeted.server.said.items()}
    return ArmSetup(name=name, flags=(), configuration=said or None)


def frozen(started: Started) -> tuple[str, ...]:
    """What must be said of servers that were frozen."""
    return (SPINNING.format(names=" and ".join(started.spinning)),) if started.spinning else ()

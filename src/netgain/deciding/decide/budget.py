"""Device-hours of an experiment, said before it is run, and what is given up to stay within a budget."""

import re
from collections.abc import Callable, Iterator

import msgspec

from netgain.deciding.decide.settings import Form
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.errors import UsageError
from netgain.wording import count

_UNITS_S = {"h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """All arms hold their devices from their first start to the end. `wall_s`: measuring and starting, of each of so many
    `candidates`, which are tried one after another. `assumed`: nothing tells how many devices an arm holds."""

    arms: int
    devices: int
    wall_s: float
    candidates: int = 1
    assumed: bool = False

    @property
    def device_hours(self) -> float:
        return self.candidates * self.arms * self.devices * self.wall_s / 3600.0

    @property
    def says(self) -> str:
        held = "" if self.candidates == 1 else f"{count(self.candidates, 'candidate')} x "
        devices = f"{count(self.devices, 'device')}{' (assumed)' if self.assumed else ''}"
        held += f"{count(self.arms, 'arm')} x {devices} x {self.wall_s / 60.0:.1f} min"
        return f"estimated {_hours(self.device_hours)} device-hours ({held})"


def estimate(
    form: Form, measuring_s: float, start_s: float, devices: int, assumed: bool = False, candidates: int = 1
) -> Estimate:
    """`measuring_s`: of all blocks of one candidate together; `start_s`: how long one server took to start."""
    arms = 2 if form.control_every is None else 3
    wall_s = measuring_s + form.starts * arms * start_s
    return Estimate(arms=arms, devices=devices, wall_s=wall_s, candidates=candidates, assumed=assumed)


def within(budget_s: float, form: Form, cost: Callable[[Form], Estimate]) -> tuple[Form, tuple[str, ...]]:
    """The largest form that costs at most `budget_s` device-seconds, and what a smaller one loses. Raises UsageError with the
    least that would do when even the smallest that can decide costs more."""
    need = cost(form)
    for smaller in _smaller(form):
        need = cost(smaller)
        if 3600.0 * need.device_hours <= budget_s:
            return smaller, _lost(form, smaller)
    raise UsageError(
        f"a budget of {_hours(budget_s / 3600.0)} device-hours is too small: the least that can decide anything is {need.says}; "
        "give more, cut the outputs (--max-tokens), or ask at fewer loads"
        + (" or for fewer candidates" if need.candidates > 1 else "")
    )


def parse_budget(text: str) -> float:
    """Device-seconds of `2h`, `90m`, `1h30m`, `45s`. Raises UsageError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|min|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise UsageError(f"the budget {text!r} is no time; write device-hours such as 2h, 90m or 1h30m")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds <= 0.0:
        raise UsageError(f"the budget {text!r} is nothing; give a positive one")
    return seconds


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.01 else f"{hours:.1g}"


def _smaller(form: Form) -> Iterator[Form]:
    """The form and ever smaller ones: first without the control arm, then with fewer starts, then with fewer groups."""
    yield form
    form = msgspec.structs.replace(form, control_every=None)
    yield form
    for starts in range(form.starts - 1, 0, -1):
        if starts * form.groups >= FEWEST_UNITS:
            yield (form := msgspec.structs.replace(form, starts=starts))
    for groups in range(form.groups - 1, 0, -1):
        if form.starts * groups >= FEWEST_UNITS:
            yield (form := msgspec.structs.replace(form, groups=groups))
    for size in range(form.group_size - 1, 0, -1):
        yield (form := msgspec.structs.replace(form, group_size=size))


def _lost(asked: Form, given: Form) -> tuple[str, ...]:
    lost: list[str] = []
    if asked.control_every is not None and given.control_every is None:
        lost.append("Budget: no second baseline server, so a difference between two equal servers is not seen.")
    if given.starts < asked.starts:
        text = f"Budget: {count(given.starts, 'server start')} in place of {asked.starts}"
        within_starts = given.starts < FEWEST_UNITS <= asked.starts
        lost.append(text + (", so the verdict holds within these starts only." if within_starts else "."))
    if (given.groups, given.group_size) != (asked.groups, asked.group_size):
        size = (
            "" if given.group_size == asked.group_size else f" of {given.group_size} prompts, not {asked.group_size},"
        )
        lost.append(
            f"Budget: {count(given.groups, 'group')}{size} per start in place of {asked.groups}, so intervals are wider."
        )
    return tuple(lost)

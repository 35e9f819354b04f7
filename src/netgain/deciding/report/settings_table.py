"""Every setting of all arms side by side, what differs first: the same rows for every report."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from netgain.deciding.experiment.arms.confounders import differs_anyway
from netgain.deciding.experiment.arms.settings_told import ArmSettings

NOT_TOLD = "not told by this engine"
State = Literal["differs", "differs between any two processes", "same", "told by one only"]
_ORDER: tuple[State, ...] = ("differs", "told by one only", "differs between any two processes", "same")


class SettingRow(msgspec.Struct, frozen=True):
    """A setting with its value in each arm; None: this arm does not tell it."""

    name: str
    values: tuple[str | None, ...]
    state: State

    @property
    def marked(self) -> bool:
        return self.state != "same"


def versions(arms: Sequence[ArmSettings]) -> list[str]:
    """Engine and version of each arm, in words."""
    return [
        f"{arm.engine or 'unknown engine'} {arm.version}"
        if arm.version
        else f"{arm.engine or 'unknown engine'}, {NOT_TOLD}"
        for arm in arms
    ]


def setting_rows(arms: Sequence[ArmSettings]) -> list[SettingRow]:
    """Of an arm that tells nothing at all, nothing can differ."""
    names = sorted({name for arm in arms for name in arm.settings or ()})
    rows = [_row(name, arms) for name in names]
    return sorted(rows, key=lambda row: (_ORDER.index(row.state), row.name))


def summary(arms: Sequence[ArmSettings]) -> str:
    """How much is told and how much of it differs, in a line."""
    silent = [arm.name for arm in arms if arm.settings is None]
    rows = setting_rows(arms)
    told = f"{len(rows):,} settings told" if rows else "no setting told"
    parts = list(_counted(rows)) if len(arms) > 1 and not silent else []
    parts += [f"{name}: {NOT_TOLD}" for name in silent]
    return f"{told}{'; ' if parts else ''}{'; '.join(parts)}"


def _counted(rows: Sequence[SettingRow]) -> Iterator[str]:
    for state in _ORDER[:3]:
        if number := sum(row.state == state for row in rows):
            yield f"{number:,} {state if number == 1 else state.replace('differs', 'differ')}"


def _row(name: str, arms: Sequence[ArmSettings]) -> SettingRow:
    values = tuple(None if arm.settings is None else arm.settings.get(name) for arm in arms)
    told = [value for value, arm in zip(values, arms, strict=True) if arm.settings is not None]
    state: State = "same"
    if len(set(told)) > 1:
        state = "told by one only" if None in told else "differs"
        if differs_anyway(name):
            state = "differs between any two processes"
    return SettingRow(name, values, state)

"""What every technique in the catalogue can say about itself: the hinge of diagnosis, planning, experiment and report."""

from typing import Protocol

import msgspec

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Prediction, Setting


class SwitchOn(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is told. `checked_with` lists engine versions with which the switch was used to start the engine;
    empty means unverified, and an unverified switch is never presented as deployable. `read_from`: the version in whose
    source an unverified one was read. `warns`: what a reader of the result must know of it. `needs`: what must be
    installed beside the engine, which may not be there; without it the engine does not start."""

    engine: str
    flags: tuple[str, ...]
    checked_with: tuple[str, ...]
    read_from: str | None = None
    warns: tuple[str, ...] = ()
    needs: str | None = None

    @property
    def verified(self) -> bool:
        return bool(self.checked_with)

    @property
    def note(self) -> str:
        """How far the switch can be relied on."""
        if self.verified:
            beside = f" and {self.needs}, which they need" if self.needs else ""
            return f"switches checked with {self.engine} {', '.join(self.checked_with)}{beside}"
        source = f" (read from {self.read_from})" if self.read_from else ""
        return f"the switches of this technique are unverified{source}: never used to start {self.engine}, so no command is given"


class Technique(Protocol):
    """One way to trade one cost for another. Stateless; all methods are pure except for measuring their own CPU time."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def relieves(self) -> str: ...

    @property
    def brings(self) -> str: ...

    @property
    def kind(self) -> Kind:
        """What it promises of the answers, and so what it is held to."""
        ...

    @property
    def reuses(self) -> bool:
        """Whether it gains by what earlier requests left behind. Prompts of one start then share what they have in common, as
        they do in service, and the arms may find different shares of a prompt."""
        ...

    @property
    def must_report(self) -> tuple[str, ...]:
        """Figures without which a result about this technique is incomplete."""
        ...

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        """Why no measurement of a workload with made-up text (or with real text) could judge it, or None: known before any."""
        ...

    def cannot_apply(self, facts: Facts) -> str | None:
        """Why it cannot be predicted or tried here, or None."""
        ...

    def predict(self, facts: Facts) -> Prediction:
        """The best setting and what it should do. Only after `cannot_apply` returned None."""
        ...

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        """Flags for `engine`. Raises UsageError for an engine this technique has no switch for."""
        ...

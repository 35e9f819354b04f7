"""What answers that differ say of a technique whose promise on this engine is the law of the answers, not their tokens.

Sampled answers are not compared: another draw of the same law differs. Greedy ones may differ only where the engine had nearly
chosen otherwise, which rounding decides; where it is not shown to be so, quality must hold as it must of a lossy technique.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from netgain.deciding.decide.partings import Answers, look_at
from netgain.deciding.decide.quality import Judged, for_verdict
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.identity import Identity, compare_tokens, written
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.technique.kind import Kind
from netgain.deciding.verdict.document import Caveat
from netgain.deciding.verdict.quality import Quality, QualityState
from netgain.measuring.observe.names import Engine
from netgain.measuring.quality.near_ties import NEAR_TIE, Parting
from netgain.measuring.workload.item import Item
from netgain.wording import count

MOST = 32  # differing answers that are looked at, each by two requests of one token


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """`doubts` and `losses` as in `Terms`. `state` and `says`: what is known of the promise (None: nothing was judged here).
    `caveat`: of how a lossy technique was judged."""

    doubts: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    state: QualityState | None = None
    says: str | None = None
    caveat: str | None = None

    def in_verdict(
        self, measured: Judged | None, promise: Kind, identity: Identity | None, scorer: str | None
    ) -> Quality | None:
        """What a verdict holds of it, beside what was measured before (None: nothing was)."""
        found = None if measured is None else for_verdict(measured, promise, identity, scorer)
        if self.says is None:
            return found
        return msgspec.structs.replace(found or Quality(identity=identity), state=self.state, says=self.says)

    def caveats(self, engine: Engine) -> tuple[Caveat, ...]:
        """What a reader of any report must know of it."""
        promised = None if self.says is None else f"Answers: {self.says}."
        return tuple(Caveat(says=says, engine=engine) for says in (promised, self.caveat) if says is not None)


async def judge_promise(
    promise: Kind,
    observations: Sequence[Observation],
    items: Iterable[Item],
    arms: Mapping[str, Arm],
    engine: Engine,
    model: str,
    quality: Judged | None,
) -> Kept:
    """While both servers still run. `quality`: as measured before (None: it was not)."""
    if promise == "lossy" and quality is not None:
        return Kept(doubts=quality.doubts, losses=quality.losses, caveat=quality.caveat)
    if promise != "law-preserving":
        return Kept()
    known = {item.id: item for item in items}
    greedy = [seen for seen in observations if known[seen.record.item_id].temperature == 0.0]
    sampled = len({seen.record.item_id for seen in observations}) - len({seen.record.item_id for seen in greedy})
    identity = compare_tokens(greedy)
    differing = [name for name in identity.differing if name not in identity.baseline_differs]
    partings: tuple[Parting, ...] = ()
    if differing:
        pairs = [pair for name in differing[:MOST] if (pair := _pair(greedy, name)) is not None]
        partings = await look_at((arms[BASELINE], arms[CANDIDATE]), engine, model, known, pairs)
    return conclude(identity.compared, len(differing), partings, sampled, engine, quality)


def conclude(
    compared: int, differing: int, partings: Sequence[Parting], sampled: int, engine: Engine, quality: Judged | None
) -> Kept:
    """Of `compared` greedy answers `differing` differ, and `partings` of those were looked at; `sampled` prompts had no greedy
    ones. Pure."""
    losses = () if quality is None else quality.losses
    promised = f"on {engine} greedy answers are promised but for near-ties, and the law of sampled ones"
    parts = [f"{compared - differing} of {count(compared, 'greedy answer')} the same"] if compared else []
    if sampled:
        parts.append(f"{count(sampled, 'sampled answer')} not compared, since another draw of the same law differs")
    clear = [one for one in partings if one.near_tie is False]
    unknown = [one for one in partings if one.near_tie is None]
    if partings:
        near = len(partings) - len(clear) - len(unknown)
        parts.append(
            f"of {len(partings)} that were looked at where they part, {near} part at a near-tie (at most {NEAR_TIE:g} nats), "
            f"{len(clear)} at a clear choice, {len(unknown)} unknown"
        )
    says = f"{promised}: {'; '.join(parts) or 'none could be compared'}"
    if not differing or (partings and not clear and not unknown):
        held: QualityState | None = "held" if compared else None
        return Kept(losses=losses, state="breached" if losses else held, says=says)
    if quality is not None and _answers_judged(quality):
        state: QualityState = "breached" if losses else "not shown" if quality.doubts else "held"
        return Kept(doubts=quality.doubts, losses=losses, state=state, says=f"{says}; {quality.gate.says}")
    why = (
        f"{len(clear)} of {len(partings)} part where the choice was clear"
        if clear
        else "whether they part at near-ties is not known: the engine told no token ids or no log-probabilities there"
    )
    doubt = (
        f"{differing} of {count(compared, 'greedy answer')} differ, and {why}; so its answers may be worse: measure their "
        "quality beside the speed with --tasks FILE"
    )
    return Kept(doubts=(doubt,), losses=losses, state="breached" if losses else "not shown", says=says)


def _answers_judged(quality: Judged) -> bool:
    """Whether answers were judged, by tasks: scoring texts decodes nothing, so no draft has a part in it."""
    measured = quality.measured
    return measured is not None and measured.comparison is not None and measured.comparison.tasks is not None


def _pair(observations: Sequence[Observation], name: str) -> Answers | None:
    """An answer of the baseline and one of the candidate that differs from it."""
    ours, theirs = (
        [seen.record for seen in observations if seen.arm == arm and seen.record.item_id == name and seen.record.ok]
        for arm in (BASELINE, CANDIDATE)
    )
    return next(((one, other) for one in ours for other in theirs if written(one) != written(other)), None)

"""What the scheduler decides for one step."""

from typing import NamedTuple

import msgspec

from netgain.serving.engine.sequence import Sequence


class Work(msgspec.Struct, frozen=True):
    """Compute `count` tokens of `sequence` from position `start`; the last 1 + `drafts` of them choose tokens if `samples`.

    The logits of the `scored` tokens from position `scored_from` on are wanted, too.
    """

    sequence: Sequence
    start: int
    count: int
    drafts: int
    prefill: bool
    samples: bool
    scored: int = 0
    scored_from: int = 0


class Admission(msgspec.Struct, frozen=True):
    """A waiting sequence that starts in this step (`first`) or starts again after a preemption, and how long the look for
    its cached prefix took. It is LOADING where more of its prefix is to come from tiers first."""

    sequence: Sequence
    first: bool
    lookup_start_s: float
    lookup_end_s: float


class Published(NamedTuple):
    """A block whose KV is final and can be found under its key from now on."""

    block: int
    key: bytes


class StepPlan(msgspec.Struct, frozen=True):
    """What one step does. A sequence that was `preempted` lost its blocks and waits at the head of the queue; a load into them
    is void."""

    work: tuple[Work, ...]
    admitted: tuple[Admission, ...]
    preempted: tuple[Sequence, ...]

    @property
    def tokens(self) -> int:
        return sum(work.count for work in self.work)

    @property
    def named(self) -> frozenset[str]:
        """The requests that it says something of."""
        working, admitted = (work.sequence for work in self.work), (one.sequence for one in self.admitted)
        return frozenset(sequence.id for sequence in (*working, *admitted, *self.preempted))

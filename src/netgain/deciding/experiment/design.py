"""What an experiment measures, in which order: groups of prompts, mirrored, under several starts of the servers."""

from collections.abc import Sequence

import msgspec

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.errors import UsageError
from netgain.measuring.workload.arrivals import Arrivals, Closed, Poisson
from netgain.measuring.workload.item import Item

SEEDS_APART = 100_003  # between the schedules of two seeds; more than there are groups


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """Which prompts are measured together, in order of time, and under how many starts of the servers.

    Both arms see the same prompts in the same order. Groups are spread evenly over `starts`; a claim across starts needs
    several, since what a process got at its start (memory layout, threads' places) stays with it. Every
    `control_every`-th group of a start is also answered by a second baseline server (None: there is no such server).
    `enough_after`: after so many starts it is asked how many there are to be, at most `starts` (None: all of them).
    `loads`: the concurrency of each group, where they differ; groups of one load then take turns in beginning.
    `rate_per_s`: requests come at that rate (Poisson, drawn from `seed` and the group, so that all arms of a group share one
    schedule), whatever is in flight; None: a closed loop.
    `mirrored` False: each arm answers a group once, for servers which would find their own KV the second time.
    """

    groups: tuple[tuple[Item, ...], ...]
    concurrency: int
    starts: int = 1
    control_every: int | None = None
    mirrored: bool = True
    loads: tuple[int, ...] = ()
    enough_after: int | None = None
    rate_per_s: float | None = None
    seed: int = 0

    @property
    def with_control(self) -> bool:
        return self.control_every is not None

    def start_of(self, group: int) -> int:
        return group * self.starts // len(self.groups)

    def load_of(self, group: int) -> int:
        return self.loads[group] if self.loads else self.concurrency

    def arrivals(self, group: int) -> Arrivals:
        """When the requests of a group are sent, the same in each of its blocks."""
        if self.rate_per_s is None:
            return Closed(self.load_of(group))
        return Poisson(self.rate_per_s, self.seed * SEEDS_APART + group)

    def order(self, group: int) -> tuple[str, ...]:
        """Mirrored, so that a drift that is linear in time cancels within the group; every other group begins with the
        candidate, so that what comes first in a group burdens both arms alike (and, where nothing is mirrored, a drift
        cancels over two groups)."""
        first = next(at for at in range(len(self.groups)) if self.start_of(at) == self.start_of(group))
        turn = group
        if self.loads:  # of its load within the start; every other two starts (of either order) begin the other way
            turn = self.loads[first:group].count(self.loads[group]) + self.start_of(group) // 2
        half: tuple[str, ...] = (BASELINE, CANDIDATE) if turn % 2 == 0 else (CANDIDATE, BASELINE)
        if self.control_every is not None and (group - first) % self.control_every == 0:
            half = (*half, CONTROL)
        return (*half, *reversed(half)) if self.mirrored else half

    def up_to(self, starts: int) -> "Design":
        """The part of it in the first so many starts."""
        kept = [group for group in range(len(self.groups)) if self.start_of(group) < starts]
        return msgspec.structs.replace(
            self, groups=self.groups[: len(kept)], loads=self.loads[: len(kept)], starts=starts, enough_after=None
        )

    @property
    def fewest(self) -> "Design":
        """What is measured in any case."""
        return self if self.enough_after is None else self.up_to(self.enough_after)

    @property
    def blocks(self) -> int:
        return sum(len(self.order(group)) for group in range(len(self.groups)))

    @property
    def requests(self) -> int:
        return sum(len(self.order(group)) * len(items) for group, items in enumerate(self.groups))

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for group in self.groups for item in group)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(item.id for item in self.items)


def grouped(items: Sequence[Item], groups: int, size: int) -> tuple[tuple[Item, ...], ...]:
    """Deal items out to `groups` groups of `size`, taking turns, so that each group is a sample of the whole.

    With too few items they are dealt again from the start, never twice to the same group; a group is at most all items.
    Raises UsageError without items.
    """
    if not items or groups < 1 or size < 1:
        raise UsageError(f"{len(items)} prompts cannot be dealt to {groups} groups of {size}; give more prompts")
    size = min(size, len(items))
    dealt: list[list[Item]] = [[] for _ in range(groups)]
    for place in range(groups * size):
        at = place
        while items[at % len(items)] in dealt[place % groups]:
            at += 1
        dealt[place % groups].append(items[at % len(items)])
    return tuple(tuple(group) for group in dealt)

"""What purges that go on condemn: judged wherever something is on its way, so that what was swept from one tier cannot come
back from another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from netgain.serving.tiers.medium import Data
from netgain.serving.tiers.object import Refused, StoredObject, unpack_head

Condemned = Callable[[StoredObject], bool]


def condemns(purges: Sequence[Condemned], data: Data) -> bool:
    """Whether one of these condemns an object, by its header; one whose header cannot be read is of no use to anybody."""
    if not purges:
        return False
    try:
        stored = unpack_head(data).stored
    except Refused:
        return True
    return any(condemned(stored) for condemned in purges)


class Purges:
    """Of one stack, called from its event loop. `begun`: how many so far."""

    def __init__(self) -> None:
        self.begun = 0
        self._going_on: list[Condemned] = []
        self._reads: list[list[Condemned]] = []  # of each read that goes on, the purges that it has met

    @contextmanager
    def one(self, condemned: Condemned) -> Iterator[None]:
        """A purge, from its beginning to its end."""
        self.begun += 1
        for purges in (self._going_on, *self._reads):
            purges.append(condemned)
        try:
            yield
        finally:
            self._going_on.remove(condemned)

    @contextmanager
    def met(self) -> Iterator[Sequence[Condemned]]:
        """Around a read: the purges that go on or begin while it does, also those that have ended by its end, since what they
        removed may have been read before."""
        purges = self._going_on.copy()
        self._reads.append(purges)
        try:
            yield purges
        finally:
            self._reads = [one for one in self._reads if one is not purges]

    def condemn(self, data: Data) -> bool:
        """Whether a purge that goes on condemns the object."""
        return condemns(self._going_on, data)

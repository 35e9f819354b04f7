"""What a tier did so far, in figures."""

import math
from collections import deque

import msgspec

from netgain.cost.link import LinkEstimate, LinkFit
from netgain.serving.tiers.medium import FaultKind, Usage
from netgain.serving.tiers.object import Reason

_RECENT = 512  # exchanges behind the percentiles


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One direction. `seconds` adds up exchanges that came back, also those that found nothing; `p95_s` and `p99_s` are of the
    last ones (None: there was none)."""

    objects: int
    bytes: int
    seconds: float
    link: LinkFit | None
    p95_s: float | None = None
    p99_s: float | None = None


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start. Every key asked for is a hit or a miss; a refused object is a miss as well."""

    name: str
    hits: int
    misses: int
    loaded: Flow
    stored: Flow
    refused: dict[Reason, int]
    unread: dict[FaultKind, int]  # keys not read, by why
    unwritten: dict[FaultKind, int]  # objects not kept, by why
    other_faults: dict[FaultKind, int]  # of contains, delete, list
    breaker: str
    breaker_opened: int
    usage: Usage
    notices: int | None = None  # what of the medium's own settings works against it; None: it has not said


class Direction:
    """Adds up what one direction does."""

    def __init__(self) -> None:
        self.objects = 0
        self.bytes = 0
        self.seconds = 0.0
        self.link = LinkEstimate()
        self._recent_s: deque[float] = deque(maxlen=_RECENT)

    def add(self, objects: int, size: int, seconds: float) -> None:
        self.objects += objects
        self.bytes += size
        self.seconds += seconds
        self.link.add(size, seconds)
        self._recent_s.append(seconds)

    def flow(self) -> Flow:
        ordered = sorted(self._recent_s)
        p95_s, p99_s = (ordered[math.ceil(share * len(ordered)) - 1] if ordered else None for share in (0.95, 0.99))
        return Flow(
            objects=self.objects,
            bytes=self.bytes,
            seconds=self.seconds,
            link=self.link.fit(),
            p95_s=p95_s,
            p99_s=p99_s,
        )

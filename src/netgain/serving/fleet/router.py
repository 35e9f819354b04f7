"""Which replica gets a request: a policy sees who is ready and how much each has in hand, and nothing else. Free of I/O."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A ready replica and the requests it holds."""

    name: str
    in_flight: int


class RouterPolicy(Protocol):
    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """One of `candidates`, of which there is at least one."""
        ...


class FewestInFlight:
    """The replica with the fewest requests; among equals the first."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        return min(candidates, key=lambda candidate: candidate.in_flight)

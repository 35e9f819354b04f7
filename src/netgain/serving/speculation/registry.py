"""The proposers and verifiers that can be named in a configuration."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeVar

from netgain.errors import UsageError
from netgain.serving.engine.protocols import Proposer, Verifier
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier

PROPOSERS: Mapping[str, Callable[[int, int, int], Proposer]] = MappingProxyType({"ngram": NgramProposer})

Member = TypeVar("Member")

VERIFIERS: Mapping[str, Callable[[], Verifier]] = MappingProxyType(
    {"coupled": CoupledVerifier, "rejection": RejectionVerifier}
)


def build_proposer(method: str, k: int, lookup_min: int, lookup_max: int) -> Proposer:
    """A proposer of up to `k` tokens that looks up n-grams of `lookup_min` to `lookup_max`. Raises UsageError."""
    build = _named("speculation method", method, PROPOSERS)
    if k < 1:
        raise UsageError(f"{method} speculation with {k} drafts per step; give at least 1, or switch speculation off")
    if lookup_min < 1:
        raise UsageError(f"the shortest n-gram to look up is {lookup_min} tokens; give at least 1")
    if lookup_max < lookup_min:
        raise UsageError(
            f"the longest n-gram to look up ({lookup_max}) is shorter than the shortest ({lookup_min}); "
            "raise the one or lower the other"
        )
    return build(k, lookup_min, lookup_max)


def build_verifier(name: str) -> Verifier:
    """Raises UsageError naming the nearest verifier when `name` is none."""
    return _named("verifier", name, VERIFIERS)()


def _named(kind: str, name: str, members: Mapping[str, Member]) -> Member:
    try:
        return members[name]
    except KeyError:
        near = get_close_matches(name, members, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown {kind} {name!r}; {hint}there is {', '.join(members)}") from None

"""The proposers and verifiers that can be named in a configuration."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeVar

import msgspec

from netgain.errors import UsageError
from netgain.serving.engine.protocols import Proposer, Verifier
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier


class ProposerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What proposers can be told; each reads what concerns it."""

    k: int
    lookup_min: int = 2
    lookup_max: int = 4
    suffix: SuffixOptions = SuffixOptions()


Member = TypeVar("Member")

VERIFIERS: Mapping[str, Callable[[], Verifier]] = MappingProxyType(
    {"coupled": CoupledVerifier, "rejection": RejectionVerifier, "block": BlockVerifier}
)


def _ngram(options: ProposerOptions) -> Proposer:
    if options.lookup_min < 1:
        raise UsageError(f"the shortest n-gram to look up is {options.lookup_min} tokens; give at least 1")
    if options.lookup_max < options.lookup_min:
        raise UsageError(
            f"the longest n-gram to look up ({options.lookup_max}) is shorter than the shortest ({options.lookup_min}); "
            "raise the one or lower the other"
        )
    return NgramProposer(options.k, options.lookup_min, options.lookup_max)


def _suffix(options: ProposerOptions) -> Proposer:
    return SuffixProposer(options.k, options.suffix)


PROPOSERS: Mapping[str, Callable[[ProposerOptions], Proposer]] = MappingProxyType({"ngram": _ngram, "suffix": _suffix})


def build_proposer(method: str, options: ProposerOptions) -> Proposer:
    """A proposer by name. Raises UsageError."""
    build = _named("speculation method", method, PROPOSERS)
    if options.k < 1:
        raise UsageError(
            f"{method} speculation with {options.k} drafts per step; give at least 1, or switch speculation off"
        )
    return build(options)


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

"""The proposers and verifiers that can be named in a configuration."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeVar

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.errors import UsageError
from netgain.serving.engine.drafting import AsManyAsAllowed
from netgain.serving.engine.protocols import DraftControl, Proposer, Verifier
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.control import LoadControl
from netgain.serving.speculation.goodput import GoodputControl
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.speculation.synthetic import SyntheticProposer
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


PROPOSERS: Mapping[str, Callable[[ProposerOptions], Proposer]] = MappingProxyType(
    {"ngram": _ngram, "suffix": _suffix, "synthetic": lambda options: SyntheticProposer(options.k)}
)


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


class ControlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What controls of drafts can be told; each reads what concerns it. `cost` gives the step-cost curve in use; `computed`
    says that drafts come from a model and cost time of their own."""

    k: int
    by_load: Mapping[int, int]
    cost: Callable[[], StepCost | None]
    computed: bool = False


CONTROLS: Mapping[str, Callable[[ControlOptions], DraftControl]] = MappingProxyType(
    {
        "fixed": lambda options: AsManyAsAllowed(),
        "by-load": lambda options: LoadControl(options.by_load),
        "goodput": lambda options: GoodputControl(options.k, options.cost, computed=options.computed),
    }
)


def build_control(name: str, options: ControlOptions) -> DraftControl:
    """Raises UsageError naming the nearest control when `name` is none."""
    return _named("control of drafts", name, CONTROLS)(options)


def _named(kind: str, name: str, members: Mapping[str, Member]) -> Member:
    try:
        return members[name]
    except KeyError:
        near = get_close_matches(name, members, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown {kind} {name!r}; {hint}there is {', '.join(members)}") from None

"""Load or compute: how many leading blocks of a prompt to take from tiers, by the predicted cost of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from netgain.cost.link import LinkFit  # which takes numpy, and a server's start does not

GROUP_BLOCKS = 16  # that go in one exchange, unless told otherwise
LAYER_GROUPS = 6  # in which the end of a prefix comes, unless told otherwise
LEAST_HIDDEN_S = 0.001  # of a transfer: to hide less is not worth the exchanges
LEAST_HIDDEN = 0.03  # the same as a share of the pass
LEAST_OF_LATENCY = (
    0.25  # the same as a share of the latency of the exchanges that it takes more: much of it may need the processor
)
MOVING = 0.9  # of a pass, in which layers are to come
_CANDIDATES = 16


class Why(StrEnum):
    NOTHING_FOUND = "nothing_found"
    LOAD = "load"  # predicted to be sooner
    COMPUTE = "compute"  # predicted to be sooner than loading anything
    LEARN = "learn"  # loaded because the link has not been measured yet
    NO_CURVE = "no_curve"  # loaded because the cost of computing is not known
    LEARNING = "learning"  # computed while another request learns what the link costs
    ALWAYS = "always"  # loaded without asking what is sooner


class Choice(msgspec.Struct, frozen=True):
    """Load `blocks` leading blocks and compute the rest. `warm_s` and `full_s` are the predictions for this and for loading
    nothing (None: not known); the loader waits at most until `full_s`, and writes the truth beside them. Of the transfer,
    `hidden_s` passes while the rest is computed, and is not in `warm_s`."""

    blocks: int
    warm_s: float | None
    full_s: float | None
    why: Why
    hidden_s: float = 0.0


class Layered(msgspec.Struct, frozen=True):
    """The last `blocks` of what is loaded come by layers, and `hidden_s` of their transfer passes while what follows them is
    computed."""

    blocks: int
    hidden_s: float


NOT_LAYERED = Layered(0, 0.0)


def choose(
    places: Sequence[int | None],
    links: Sequence[LinkFit | None],
    block_bytes: int,
    compute_s: Callable[[int], float | None],
    group: int = GROUP_BLOCKS,
    hidden_s: Callable[[int], float] = lambda blocks: 0.0,
    ahead: Mapping[int, int] = MappingProxyType({}),
) -> Choice:
    """`places[i]` is the tier that has the i-th block beyond those on the device, `links` what loading from each tier costs,
    `group` how many objects go in one exchange (TierOptions.group), and `compute_s(k)` the prefill of all that follows the
    first k blocks, of whose load `hidden_s(k)` costs no time. `ahead`: blocks that each tier has to send to others first.
    Loads may end anywhere: where tiers change, at the end, and at up to 16 places between are tried."""
    found = [place for place in takewhile(lambda place: place is not None, places) if place is not None]
    full_s = compute_s(0)
    if not found:
        return Choice(0, full_s, full_s, Why.NOTHING_FOUND)
    whole_s = load_s(found, links, block_bytes, group, ahead)
    if whole_s is None:
        return Choice(len(found), None, full_s, Why.LEARN)
    if full_s is None:
        return Choice(len(found), None, None, Why.NO_CURVE)
    best = Choice(0, full_s, full_s, Why.COMPUTE)
    for blocks in _ends(found):
        moved_s, rest_s = load_s(found[:blocks], links, block_bytes, group, ahead), compute_s(blocks)
        if moved_s is None or rest_s is None:
            continue
        hidden = hidden_s(blocks)
        if moved_s + rest_s - hidden < (best.warm_s or 0.0):
            best = Choice(blocks, moved_s + rest_s - hidden, full_s, Why.LOAD, hidden)
    return best


def layered(
    found: Sequence[int],
    links: Sequence[LinkFit | None],
    block_bytes: int,
    group: int,
    groups: int,
    pass_s: float,
    share: float = 1.0,
) -> Layered:
    """How many of the last blocks should come in `groups` groups of layers, behind which a forward pass of `pass_s` computes:
    as many as their tier can move in most of that time, so that the pass waits for nothing but the first group. Of what is
    hidden, a `share` is gained. NOT_LAYERED where that is too little for the trouble."""
    link = links[found[-1]] if found and groups > 1 else None
    if link is None or link.bytes_per_s is None:
        return NOT_LAYERED
    block_s = block_bytes / link.bytes_per_s
    together = sum(1 for _ in takewhile(lambda tier: tier == found[-1], reversed(found)))
    moving_s = MOVING * pass_s
    each = (
        group * groups
    )  # blocks of whose layers in one group an exchange brings as many bytes as of `group` whole blocks
    blocks = max(
        min(exchanges * each, together, int((moving_s - exchanges * groups * link.latency_s) / block_s))
        for exchanges in range(1, -(-together // each) + 1)
    )
    hidden_s = share * blocks * block_s * (groups - 1) / groups
    more_s = (groups - 1) * -(-blocks // group) * link.latency_s
    least_s = max(LEAST_HIDDEN_S, LEAST_HIDDEN * pass_s, LEAST_OF_LATENCY * more_s)
    return Layered(blocks, hidden_s) if hidden_s >= least_s else NOT_LAYERED


def load_s(
    found: Sequence[int],
    links: Sequence[LinkFit | None],
    block_bytes: int,
    group: int,
    ahead: Mapping[int, int] = MappingProxyType({}),
) -> float | None:
    """Seconds to load a block from each of these tiers, one tier after the other, behind what each has to send `ahead` of them
    (blocks); None where a link is not known."""
    total_s = 0.0
    for tier, blocks in Counter(found).items():
        link = links[tier]
        moving_s = None if link is None else link.predict_s(blocks * block_bytes)
        if link is None or moving_s is None:
            return None
        total_s += moving_s + link.latency_s * ((blocks - 1) // group)
        if link.bytes_per_s is not None:
            total_s += ahead.get(tier, 0) * block_bytes / link.bytes_per_s
    return total_s


def _ends(found: Sequence[int]) -> list[int]:
    """Where a load may end, ascending."""
    count = len(found)
    changes = {index for index in range(1, count) if found[index] != found[index - 1]}
    between = {count * part // _CANDIDATES for part in range(1, _CANDIDATES + 1)}
    return sorted((changes | between) - {0})

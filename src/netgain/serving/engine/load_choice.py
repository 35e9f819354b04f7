"""Load or compute, for one request: the links as learnt, the copy into the pool behind them, and what computing would take."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from netgain.cost.link import LinkEstimate, LinkFit
from netgain.cost.loading import NOT_LAYERED, Choice, Layered, Why, choose, layered, load_s
from netgain.serving.engine.kv_load import Load, TieringOptions
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.sequence import Sequence as Queued

LEAST_WAIT_S = 0.02  # no load is given up before
_LEAST_KNOWN = 3
_ASKED_AGAIN = 50  # loads


class Hiding:
    """What of a transfer is gained by hiding it behind a step: where it needs the processor, too, the step takes longer, and so
    does the transfer."""

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=16)
        self._asked = 0

    def observed(self, hidden_s: float, lost_s: float) -> None:
        """Of `hidden_s` that passed during a step, so much was lost again: step and transfer took `lost_s` longer than apart."""
        self._kept.append(min(1.0, max(0.0, 1.0 - lost_s / hidden_s)))
        self._asked = 0

    def asked(self) -> None:
        """A load begins, which may or may not be hidden."""
        self._asked += 1

    @property
    def share(self) -> float:
        """What of a transfer is hidden: 1 before it is known, and again after many loads of which nothing was learnt."""
        if len(self._kept) < _LEAST_KNOWN or self._asked > _ASKED_AGAIN:
            return 1.0
        return statistics.median(self._kept)


class LoadChoice:
    """`placing` learns what copying into the pool costs, `hiding` what of a transfer a step hides; `object_bytes` is what a block
    takes in tiers, and `layer_groups` in how many groups of layers blocks can be had."""

    def __init__(
        self, cost: PrefillCost, options: TieringOptions, block_tokens: int, object_bytes: int, layer_groups: int = 1
    ) -> None:
        self.cost = cost
        self.placing = LinkEstimate()
        self.hiding = Hiding()
        self._options = options
        self._block_tokens = block_tokens
        self._object_bytes = object_bytes
        self.layer_groups = layer_groups

    def compute_s(self, sequence: Queued, blocks: int) -> float | None:
        """To compute what follows the first `blocks` blocks."""
        return self.cost.seconds(blocks * self._block_tokens, sequence.length)

    def choose(
        self, load: Load, first: int, links: Sequence[LinkFit | None], ahead: Mapping[int, int] | None = None
    ) -> Choice:
        """How many of the blocks from the one numbered `first` on to load. `ahead`: blocks that tiers send to others first."""
        places = load.places[first:]
        start = load.base + first
        if (self._options.policy == "always" or load.sequence.past_device) and places:
            return Choice(len(places), None, self.compute_s(load.sequence, start), Why.ALWAYS)
        placing = self.placing.fit()
        return choose(
            places,
            [_behind(link, placing) for link in links],
            self._object_bytes,
            lambda blocks: self.compute_s(load.sequence, start + blocks),
            self._options.group,
            lambda blocks: self._layered(load, first, blocks, links).hidden_s,
            ahead or {},
        )

    def tail_blocks(self, load: Load, first: int) -> int:
        """How many of the last blocks of a load that begins with the one numbered `first` should come by layers."""
        self.hiding.asked()
        return self._layered(load, first, load.end - first, load.links).blocks

    def whole_s(self, load: Load, first: int) -> float | None:
        """To have the blocks from the one numbered `first` on in the pool, if they came whole, by what links cost when asked."""
        links = [_behind(link, self.placing.fit()) for link in load.links]
        return load_s(load.places[first : load.end], links, self._object_bytes, self._options.group)

    def pass_s(self, sequence: Queued, blocks: int) -> float | None:
        """The first step of what follows the first `blocks` blocks."""
        return self.cost.first_step_s(blocks * self._block_tokens, sequence.length)

    def _layered(self, load: Load, first: int, blocks: int, links: Sequence[LinkFit | None]) -> Layered:
        pass_s = self.pass_s(load.sequence, load.base + first + blocks) if self.layer_groups > 1 else None
        if pass_s is None:
            return NOT_LAYERED
        places = load.places[first : first + blocks]
        share = self.hiding.share
        return layered(places, links, self._object_bytes, self._options.group, self.layer_groups, pass_s, share)

    def expect(self, load: Load, choice: Choice, end: int) -> None:
        """How long the choice says that loading up to `end` takes."""
        rest_s = self.compute_s(load.sequence, load.base + end)
        if choice.warm_s is not None and rest_s is not None:
            load.expected_s = max(0.0, choice.warm_s + choice.hidden_s - rest_s)

    def bound_s(self, load: Load) -> float:
        """Seconds that a request may wait for its load."""
        kv, longest_s = load.kv, self._options.load_s
        if self._options.policy != "measured" or kv.full_s is None or load.sequence.past_device:
            return longest_s
        wait_s = kv.full_s / 4 if load.expected_s is None else min(kv.full_s, 3.0 * load.expected_s)
        return min(longest_s, max(LEAST_WAIT_S, wait_s))


def _behind(link: LinkFit | None, placing: LinkFit | None) -> LinkFit | None:
    """The link with the copy into the pool behind it."""
    if link is None or link.bytes_per_s is None or placing is None or placing.bytes_per_s is None:
        return link
    rate = 1.0 / (1.0 / link.bytes_per_s + 1.0 / placing.bytes_per_s)
    return msgspec.structs.replace(link, latency_s=link.latency_s + placing.latency_s, bytes_per_s=rate)

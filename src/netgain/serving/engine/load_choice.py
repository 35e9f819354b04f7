"""Load or compute, for one request: the links as learnt, the copy into the pool behind them, and what computing would take."""

from collections.abc import Sequence

import msgspec

from netgain.cost.link import LinkEstimate, LinkFit
from netgain.serving.engine.kv_load import Load, TieringOptions
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.sequence import Sequence as Queued
from netgain.serving.tiers.choice import Choice, Why, choose

LEAST_WAIT_S = 0.02  # no load is given up before


class LoadChoice:
    """`placing` learns what copying into the pool costs; `object_bytes` is what a block takes in tiers."""

    def __init__(self, cost: PrefillCost, options: TieringOptions, block_tokens: int, object_bytes: int) -> None:
        self.cost = cost
        self.placing = LinkEstimate()
        self._options = options
        self._block_tokens = block_tokens
        self._object_bytes = object_bytes

    def compute_s(self, sequence: Queued, blocks: int) -> float | None:
        """To compute what follows the first `blocks` blocks."""
        return self.cost.seconds(blocks * self._block_tokens, sequence.length)

    def choose(self, load: Load, first: int, links: Sequence[LinkFit | None]) -> Choice:
        """How many of the blocks from the one numbered `first` on to load."""
        places = load.places[first:]
        start = load.base + first
        if self._options.policy == "always" and places:
            return Choice(len(places), None, self.compute_s(load.sequence, start), Why.ALWAYS)
        placing = self.placing.fit()
        return choose(
            places,
            [_behind(link, placing) for link in links],
            self._object_bytes,
            lambda blocks: self.compute_s(load.sequence, start + blocks),
            self._options.group,
        )

    def expect(self, load: Load, choice: Choice, end: int) -> None:
        """How long the choice says that loading up to `end` takes."""
        rest_s = self.compute_s(load.sequence, load.base + end)
        if choice.warm_s is not None and rest_s is not None:
            load.expected_s = max(0.0, choice.warm_s - rest_s)

    def bound_s(self, load: Load) -> float:
        """Seconds that a request may wait for its load."""
        kv, longest_s = load.kv, self._options.load_s
        if self._options.policy != "measured" or kv.full_s is None:
            return longest_s
        wait_s = kv.full_s / 4 if load.expected_s is None else min(kv.full_s, 3.0 * load.expected_s)
        return min(longest_s, max(LEAST_WAIT_S, wait_s))


def _behind(link: LinkFit | None, placing: LinkFit | None) -> LinkFit | None:
    """The link with the copy into the pool behind it."""
    if link is None or link.bytes_per_s is None or placing is None or placing.bytes_per_s is None:
        return link
    rate = 1.0 / (1.0 / link.bytes_per_s + 1.0 / placing.bytes_per_s)
    return msgspec.structs.replace(link, latency_s=link.latency_s + placing.latency_s, bytes_per_s=rate)

"""A request as the scheduler sees it: lengths, block keys and blocks held, never tokens."""

from collections.abc import Sequence as Keys
from enum import StrEnum


class SequenceState(StrEnum):
    WAITING = "waiting"
    LOADING = "loading"
    PREFILLING = "prefilling"
    DECODING = "decoding"


class Sequence:
    """`length` tokens are committed, the KV of the first `computed` of them is stored in `blocks`, which is replaced when
    it changes, so that whoever has seen the very same tuple knows it.

    `keys` are those of the full blocks of committed tokens and grow with them (the engine extends the list);
    `drafts` is how many unverified tokens the next step should add behind the committed ones. The logits of the first
    `to_score` tokens are wanted, those of the first `scored` are done. The queue is in order of `priority` (lower first),
    then `arrival`, which the scheduler numbers.

    Of the first `to_load` blocks, those from `load_from` on are to come from tiers; None: the tiers are still asked.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "cached_tokens",
        "computed",
        "drafts",
        "id",
        "keys",
        "length",
        "load_from",
        "max_length",
        "preemptions",
        "priority",
        "published",
        "scored",
        "state",
        "to_load",
        "to_score",
    )

    def __init__(
        self,
        sequence_id: str,
        length: int,
        max_length: int,
        keys: Keys[bytes],
        *,
        priority: int = 0,
        to_score: int = 0,
    ) -> None:
        self.id = sequence_id
        self.length = length
        self.max_length = max_length
        self.keys = keys
        self.state = SequenceState.WAITING
        self.computed = 0
        self.blocks: tuple[int, ...] = ()
        self.published = 0
        self.drafts = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.priority = priority
        self.arrival = 0
        self.to_score = to_score
        self.scored = 0
        self.load_from = 0
        self.to_load: int | None = 0

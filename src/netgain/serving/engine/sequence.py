"""A request as the scheduler sees it: lengths, block keys and blocks held, never tokens."""

from collections.abc import Sequence as Keys
from enum import StrEnum

from netgain.serving.engine.request import Request
from netgain.serving.tiers.blending.selection import PIECE_TOKENS


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
    `to_score` tokens are wanted, those of the first `scored` are done. With `piece` a step computes as much of its prompt as
    ends at a multiple of that position, whatever the step's budget. The queue is in order of `priority` (lower first), then
    `arrival`, which the scheduler numbers.

    Of the first `to_load` blocks, those from `load_from` on are to come from tiers; None: the tiers are still asked. While they
    are `arriving`, what follows them is computed already. With `past_device` all of them come from there, also what the device
    has. `salt` is that of its keys; once it is `unshared`, none of its blocks is published.
    """

    __slots__ = (
        "arrival",
        "arriving",
        "blocks",
        "cached_tokens",
        "computed",
        "drafts",
        "id",
        "keys",
        "length",
        "load_from",
        "max_length",
        "past_device",
        "piece",
        "preemptions",
        "priority",
        "published",
        "salt",
        "scored",
        "state",
        "to_load",
        "to_score",
        "unshared",
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
        scored: int = 0,
        piece: int = 0,
        past_device: bool = False,
        salt: bytes = b"",
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
        self.piece = piece
        self.scored = scored
        self.past_device = past_device
        self.load_from = 0
        self.to_load: int | None = 0
        self.arriving = False
        self.salt = salt
        self.unshared = False


def sequence_of(request: Request, keys: list[bytes], block_tokens: int) -> Sequence:
    """A new one; `keys` are those of the prompt's full blocks."""
    length = len(request.prompt)
    if request.chunks is not None:
        # what stands in and behind chunks is not what its key would say, and depends on the selection
        keys = keys[: request.chunks.spans[0][0] // block_tokens]
    return Sequence(
        request.id,
        length,
        length + request.sampling.max_tokens,
        keys,
        priority=request.priority,
        to_score=0 if request.sampling.prompt_logprobs is None else length - 1,
        scored=request.sampling.prompt_logprobs_from,
        past_device=request.from_tiers,
        piece=0 if request.chunks is None else PIECE_TOKENS,
        salt=request.salt,
    )

"""What one step computes (Batch) and what comes out (StepResult): plain data between the step loop and any executor."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from netgain.ledger.records import BlendCounts
from netgain.ledger.stage import Stage
from netgain.serving.engine.edits import Edits
from netgain.serving.engine.logprobs import Scores
from netgain.serving.engine.request import SamplingParams
from netgain.serving.tiers.blending.joined import Chunks


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive tokens of one request, computed in one step.

    `tokens` stand at positions start, start+1, ...; their KV goes to `block_table` (block ids of the whole request, in
    order). The last `rows` tokens need logits, and row i chooses the token at position start + len(tokens) - rows + i + 1.
    `drafts` of the tokens before the last choice are guesses, in this segment or, where a draft is read token by token, before
    it. With `laws`, the processed probabilities of every row are returned as well as the choices; `edits` change the logits
    of these rows first. `sampling.logprobs` asks for log-probabilities of what was chosen.

    The tokens from the one numbered `scored_from` on need logits, too: there is one for each of `scored`, the token that
    really follows it, to be scored with the `sampling.prompt_logprobs` most likely ones. None of them is among the last
    `rows`.

    Of a segment with `chunks` (positions in the whole request, whose tokens are `context`), which ends where a piece does (see
    piece_end) or the request, chunks are taken from where they were computed apart, for the tenant of `salt`.
    """

    request_id: str
    stage: Stage
    tokens: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    rows: int
    drafts: int
    sampling: SamplingParams
    choice: int
    laws: bool = False
    edits: Edits | None = None
    scored: tuple[int, ...] = ()
    scored_from: int = 0
    chunks: Chunks | None = None
    salt: bytes = b""
    context: Sequence[int] = ()


class Arriving(Protocol):
    """KV of the tokens before a segment that comes while the batch is computed, group of layers by group of layers."""

    @property
    def request_id(self) -> str: ...

    @property
    def starts(self) -> tuple[int, ...]:
        """The first layer of each group; the same for all of a batch."""
        ...

    async def ready(self, group: int) -> bool:
        """Returns, after a bounded time, once the KV of the group's layers is in memory, and must be asked before these
        layers read it. False: it does not come, or not in time; what the segment gives then is of no use."""
        ...


class Batch(msgspec.Struct, frozen=True):
    """The segments of one step, at most one per request. An executor asks each of `arriving` for every group of layers, in
    order, until one is missing; the result of a segment of which one is missing is not read. With a `chain` of more than 1,
    asked only of drafts that can (DraftLimits), each row chooses so many tokens, one behind the other, greedily and from
    nothing but the logits."""

    segments: tuple[Segment, ...]
    arriving: tuple[Arriving, ...] = ()
    chain: int = 1

    @property
    def tokens(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)


class SegmentResult(msgspec.Struct, frozen=True):
    """`choices[i]` is the token chosen by row i; `laws` is float64 [rows, vocab] where asked for, else None.

    `logprobs` score the choices where log-probabilities are asked for; with laws, `logits` float32 [rows, vocab], as the
    model gave them, come instead. `prompt_logprobs` score `scored`. An executor without a model leaves them None.
    `blending` says what became of the segment's chunks.
    With `error` the segment failed alone (its logits were not numbers, say) and the other segments stand."""

    choices: tuple[int, ...]
    laws: np.ndarray | None = None
    error: str | None = None
    logprobs: Scores | None = None
    prompt_logprobs: Scores | None = None
    logits: np.ndarray | None = None
    blending: BlendCounts | None = None


class StepResult(msgspec.Struct, frozen=True):
    """One result per segment of the batch, in order. `forward_s` is the part of the execution in which the model itself
    computed, in seconds; None where there is no model."""

    segments: tuple[SegmentResult, ...]
    forward_s: float | None = None

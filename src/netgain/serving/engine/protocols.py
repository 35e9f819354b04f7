"""The seams of the step loop: who executes a batch, who proposes drafts, who verifies them."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from netgain.serving.blocks.scope import Tenants
from netgain.serving.engine.batch import Batch, StepResult
from netgain.serving.engine.request import Request
from netgain.serving.tiers.planes import Plane, Rows


class Executor(Protocol):
    """Runs batches. Owns weights and KV memory; the block tables in a batch stay valid until `execute` returns."""

    async def execute(self, batch: Batch) -> StepResult:
        """Compute the batch. Raises ExecutorFailed with a named cause; the KV of the batch's rows is then undefined."""
        ...

    def close(self) -> None:
        """Give back memory and processes; may be called twice."""
        ...


class BlockMemory(Protocol):
    """The KV memory of an executor as bytes, block by block, for what moves KV elsewhere. Used between steps only, but for
    `write_layers`, which is also used while a batch waits for layers that arrive."""

    @property
    def planes(self) -> Sequence[Plane]:
        """The kinds of bytes that a prefix hit needs, the target's KV first."""
        ...

    def read_blocks(self, blocks: Sequence[int]) -> list[Rows]:
        """A copy of these blocks, per plane uint8 [len(blocks), bytes of a block], layer after layer."""
        ...

    def write_blocks(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        """The reverse: planes[p][i] are the bytes of plane p of block blocks[i]."""
        ...

    def write_layers(self, blocks: Sequence[int], first: int, rows: Sequence[memoryview]) -> None:
        """Write some layers of the first plane, from the one numbered `first` on: rows[i] are their bytes in block blocks[i],
        as many layers as there are bytes for."""
        ...

    def write_planes(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        """As `write_blocks`, of all planes but the first."""
        ...


class ChunkSource(Protocol):
    """Where an executor finds chunks that were computed apart; what it does not find it computes and adds."""

    def lacks(self, request: Request) -> bool:
        """Whether fetching may bring a chunk of the request that is not in memory."""
        ...

    async def fetch(self, request: Request) -> None:
        """Bring into memory what is kept elsewhere, within a bounded time; what does not come is computed."""
        ...

    def forget(self, tenants: Tenants, apart: Collection[str]) -> int:
        """Drop what memory has of these tenants; returns how many chunks. What the requests `apart` compute is kept for none."""
        ...

    def counters(self) -> dict[str, float]:
        """Cumulative, as metrics name them. From any thread."""
        ...

    def close(self) -> None: ...


class Draft(msgspec.Struct, frozen=True):
    """Proposed continuation. `laws` is q as it was sampled, float64 [len(tokens), vocab]; None means one-hot q."""

    tokens: tuple[int, ...]
    laws: np.ndarray | None = None

    def first(self, count: int) -> "Draft":
        """Its first `count` tokens."""
        if len(self.tokens) <= count:
            return self
        return Draft(self.tokens[:count], None if self.laws is None else self.laws[:count])


class Ask(NamedTuple):
    """A request that may speculate in this step: `tokens` are its prompt and committed output, which grow between asks;
    at most `limit` (>= 1) drafts are of use."""

    request: Request
    tokens: Sequence[int]
    limit: int


class Proposer(Protocol):
    """Guesses what requests say next. May keep state per request; `end` gives it back."""

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """A draft for each ask, in order; empty ones where there is nothing to guess. All asks of a step come in one call,
        so that a model can draft for them together. A request need not be asked in every step."""
        ...

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """The request ended, in whatever way, with `tokens`; it need not have been asked for."""
        ...


class Load(NamedTuple):
    """The decoding requests of a step: how many, and the tokens behind each, on average."""

    batch: int
    context: int


class Turn(NamedTuple):
    """A step with decodes: `drafts` were verified in all, at most `depth` of one request, and `committed` tokens came of them
    all. It took `seconds`, `draft_s` of them to make drafts, verified or not; if it is `mixed`, prompts were read in it, too."""

    drafts: int
    depth: int
    committed: int
    seconds: float
    draft_s: float
    mixed: bool = False


class DraftControl(Protocol):
    """Decides how many drafts each request gets; 0 is a normal answer. Decisions change no token under a token-identical
    verifier. Called by the step loop, in this order within a step; keeps nothing of a request that ended."""

    def limits(self, asks: Sequence[Ask], load: Load) -> Sequence[int]:
        """How many drafts to make for each ask, at most its limit; who gets 0 is not asked."""
        ...

    def keep(self, asks: Sequence[Ask], drafts: Sequence[Draft], load: Load) -> Sequence[int]:
        """How many of the drafts, made of text for those who were asked, are to be verified."""
        ...

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """A verification kept `accepted` of `drafted`."""
        ...

    def turned(self, load: Load, turn: Turn) -> None:
        """A step with decodes is over."""
        ...

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """The request ended with `tokens`."""
        ...


class Noise(Protocol):
    """The randomness of one request and choice, as a function of position. Injected, so that tests can enumerate it."""

    def accept(self, position: int, ratio: float) -> bool:
        """True with probability min(1, ratio): shall the draft at `position` stay?"""
        ...

    def draw(self, position: int, law: np.ndarray) -> int:
        """A token for `position` from unnormalised `law` [vocab], independent of `accept` at the same position."""
        ...


class Target(msgspec.Struct, frozen=True):
    """What the target model said to the last token and the drafts: k+1 rows for k drafts.

    `choices` is what the ordinary sampler chose from each row with the noise of that row's position; `laws` [k+1, vocab]
    are the probabilities after temperature, top-k and top-p (None unless the verifier's `needs_laws`).
    """

    choices: tuple[int, ...]
    laws: np.ndarray | None


class Verifier(Protocol):
    """Decides which drafts stand. Returns the committed tokens: accepted drafts, then exactly one more."""

    @property
    def needs_laws(self) -> bool: ...

    @property
    def token_identical(self) -> bool:
        """Whether the output equals the one without speculation, token for token (else: the same distribution)."""
        ...

    def verify(self, draft: Draft, target: Target, noise: Noise, position: int) -> tuple[int, ...]:
        """`position` is where the first draft stands."""
        ...

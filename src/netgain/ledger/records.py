"""What the engine writes down: steps with their composition, handoffs with their cost, requests with their stages."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from netgain.ledger.interval import Interval
from netgain.ledger.stage import Stage


class HandoffKind(StrEnum):
    DRAFT_VERIFY = "draft_verify"
    COLLECTIVE = "collective"
    ACTIVATION = "activation"
    EXPERT = "expert"
    KV_TRANSFER = "kv_transfer"
    KV_TIER = "kv_tier"
    RETRIEVE = "retrieve"


class Handoff(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One passing-on of work or data. `hidden_s` of `busy_s` ran behind something else; None = not known. `wasted_bytes` of
    `bytes` were thrown away. `why` names the reasons of one that failed, where they are known."""

    kind: HandoffKind
    source: str
    target: str
    at_s: float
    bytes: int
    used_tokens: int
    wasted_tokens: int
    waited_s: float
    busy_s: float
    hidden_s: float | None = None
    failed: bool = False
    request_id: str | None = None
    wasted_bytes: int = 0
    why: str | None = None


class StepShare(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request's part of one step. `own_s` is what the part would cost alone (None: no cost curve yet);
    `stall_s` is the rest of the step's wall time, caused by what was batched with it."""

    request_id: str
    stage: Stage
    prefill_tokens: int
    decode_tokens: int
    draft_tokens: int
    committed_tokens: int
    context_tokens: int
    own_s: float | None
    stall_s: float | None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn of the step loop; stamps are the host's monotonic seconds, in this order (drafts made of text come before
    the schedule, which has to know how many there are; those that a model makes come after it, since they need blocks,
    and are there at `ready_s`). `forward_s` is the part of the execution in which the model itself
    computed (None: not known), `between_s` the time since the step before (None: nothing ran before)."""

    index: int
    started_s: float
    drafted_s: float
    scheduled_s: float
    ready_s: float
    executed_s: float
    finished_s: float
    shares: tuple[StepShare, ...]
    waiting: int
    running: int
    free_blocks: int
    forward_s: float | None = None
    between_s: float | None = None


class DraftCounts(msgspec.Struct, kw_only=True):
    """Speculation of one request. `drafted[i]`/`accepted[i]` count drafts that reached position i and those accepted
    there, so accepted/drafted is unconditional survival; `by_length[k][a]` counts verify steps of k drafts with a accepted.
    `ended` of these steps committed no token beyond the accepted ones, because with those the text ended.
    `by_length` is also the history of how many drafts were chosen; `unasked`, `empty` and `declined` are the decisions for
    none: the control of drafts wanted none, none were found, or those found were not thought worth verifying.
    `refused` counts calls of `add` with impossible numbers, which change nothing else."""

    steps: int = 0
    drafted: list[int] = msgspec.field(default_factory=list)
    accepted: list[int] = msgspec.field(default_factory=list)
    by_length: dict[int, list[int]] = msgspec.field(default_factory=dict)
    ended: int = 0
    unasked: int = 0
    empty: int = 0
    declined: int = 0
    refused: int = 0

    def add(self, drafted: int, accepted: int, *, ended: bool = False) -> None:
        """Count one verify step: 0 <= accepted <= drafted, else it is refused (a fault in counting never stops a step)."""
        if not 0 <= accepted <= drafted:
            self.refused += 1
            return
        self.steps += 1
        self.ended += ended
        while len(self.drafted) < drafted:
            self.drafted.append(0)
            self.accepted.append(0)
        for position in range(drafted):
            self.drafted[position] += 1
        for position in range(accepted):
            self.accepted[position] += 1
        histogram = self.by_length.get(drafted)
        if histogram is None:
            histogram = self.by_length[drafted] = [0] * (drafted + 1)
        histogram[accepted] += 1

    def merge(self, other: "DraftCounts") -> None:
        """Add what was counted of another request."""
        for name in ("steps", "ended", "unasked", "empty", "declined", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        _add_up(self.drafted, other.drafted)
        _add_up(self.accepted, other.accepted)
        for length, histogram in other.by_length.items():
            _add_up(self.by_length.setdefault(length, []), histogram)

    @property
    def committed(self) -> int:
        """Tokens that the verify steps added to the text."""
        return sum(self.accepted) + self.steps - self.ended

    @property
    def decided(self) -> bool:
        """Whether drafts were in question at all: made, or decided against."""
        return bool(self.steps or self.unasked or self.empty or self.declined)

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Per position: of the drafts that reached it, the share accepted there together with all before them. A step
        whose draft was shorter is not in the denominator; None where no draft reached the position."""
        return tuple(kept / tried if tried else None for kept, tried in zip(self.accepted, self.drafted, strict=True))

    @property
    def by_length_means(self) -> dict[int, "LengthMean"]:
        """Per draft length, shortest first."""
        return {
            length: LengthMean(sum(histogram), sum(kept * times for kept, times in enumerate(histogram)), length)
            for length, histogram in sorted(self.by_length.items())
        }


class LengthMean(NamedTuple):
    """Of the verify steps whose draft had `length` tokens: how many they were, and the drafts accepted in all of them."""

    steps: int
    accepted: int
    length: int

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted tokens of steps of this length."""
        return self.accepted / (self.steps * self.length) if self.steps and self.length else None

    @property
    def kept_per_step(self) -> float | None:
        """The mean number of accepted drafts; one token more is committed unless the text ends there."""
        return self.accepted / self.steps if self.steps else None


def _add_up(into: list[int], counts: list[int]) -> None:
    """Position by position; the longer list decides the length."""
    into.extend([0] * (len(counts) - len(into)))
    for place, count in enumerate(counts):
        into[place] += count


class KVReuse(msgspec.Struct, kw_only=True):
    """What tiers beyond the device gave one request, and the decision behind it. `found_tokens` were there beyond what the
    device had, `chosen_tokens` were to be loaded, `loaded_tokens` came and were used, `wasted_tokens`, `wasted_bytes` of
    KV, came and were not. `source` names their tiers, fast to slow.

    `why`: "load" or "compute", what was predicted to be sooner; "learn" and "no_curve", loaded for want of a prediction;
    "learning", computed while another request learns; "always", as configured; "nothing_found"; "no_answer", the lookup
    took too long; "asked", the request ended before. `warm_s` and `full_s` are the predictions for what was decided and for
    computing everything, from admission to the first token; `actual_s` is the truth (None: not known). `lookup_s` was spent
    asking the tiers, `waited_s` waiting for what they sent. `failed`: less came than was chosen. `overlapped_tokens` of those
    loaded came while what follows them was computed; `hidden_s` of the transfer were predicted to pass so (None: nothing was
    predicted). `bytes` of KV came, in the forms `codecs` (raw is one) as `moved_bytes`, and `decode_s` was spent on making KV
    of these."""

    why: str = "asked"
    found_tokens: int = 0
    chosen_tokens: int = 0
    loaded_tokens: int = 0
    wasted_tokens: int = 0
    bytes: int = 0
    source: str | None = None
    lookup_s: float | None = None
    waited_s: float = 0.0
    warm_s: float | None = None
    full_s: float | None = None
    actual_s: float | None = None
    failed: bool = False
    overlapped_tokens: int = 0
    hidden_s: float | None = None
    codecs: str | None = None
    moved_bytes: int = 0
    decode_s: float = 0.0
    wasted_bytes: int = 0


class BlendCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request whose prompt has chunks that were computed apart. Of `chunk_tokens`, `recomputed_tokens` is the mean over
    the layers of how many were computed all the same; `computed_alone_tokens` stood in no cache, so they were computed by
    themselves first, in `alone_s`; `chunks_found` were there. `rotation_s` went by while chunks were moved to their places.
    `lossy`: the answer may be another than that of the prompt computed whole.

    `fetch` says why chunks that were not in memory were fetched from tiers or were not, as KVReuse.why does (None: nothing was
    asked): `chunks_wanted` were to come, `chunks_fetched` did, within `fetch_s`, after a question that took `fetch_lookup_s`.
    `fetch_warm_s` and `fetch_full_s` are the predictions for what was decided and for computing them all (None: not known); the
    truth is `fetch_s` and `alone_s`."""

    selection: str
    lossy: bool
    chunks: int
    chunk_tokens: int
    recomputed_tokens: float
    computed_alone_tokens: int
    chunks_found: int = 0
    rotation_s: float = 0.0
    alone_s: float = 0.0
    fetch: str | None = None
    chunks_wanted: int = 0
    chunks_fetched: int = 0
    fetch_lookup_s: float = 0.0
    fetch_s: float = 0.0
    fetch_warm_s: float | None = None
    fetch_full_s: float | None = None


class EngineTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine knows of a finished request; the API process adds its own intervals around it. `own_s` and
    `stall_s` split the request's step time into its own cost and waiting for batch neighbours (None: no cost curve).
    `kv` is there where KV tiers were asked for it."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    first_token_s: float | None
    intervals: tuple[Interval, ...]
    drafts: DraftCounts
    own_s: float | None = None
    stall_s: float | None = None
    kv: KVReuse | None = None
    blending: BlendCounts | None = None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One served request (one choice). `stages` tile [received_s, finished_s]; `ttft_stages` tile [received_s, first_token_s].
    `cached_tokens` and `preemptions` are None when the engine was lost before it could tell. `tenant` and `key_id` say on
    whose behalf it ran (None: the server asks for no key). `kv` says what KV tiers gave it (None: none were asked)."""

    request_id: str
    choice: int
    model: str
    received_s: float
    first_token_s: float | None
    finished_s: float
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    preemptions: int | None
    stages: dict[Stage, float]
    ttft_stages: dict[Stage, float] | None
    drafts: DraftCounts
    own_s: float | None = None
    stall_s: float | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    error: str | None = None
    tenant: str | None = None
    key_id: str | None = None
    kv: KVReuse | None = None
    blending: BlendCounts | None = None

"""What a client asks of the engine: token ids in, sampling parameters, and what comes back after each step."""

from typing import Literal

import msgspec

from netgain.ledger.records import EngineTrace
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.blending.joined import Chunks


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the output must match: `text` is a JSON schema, a regular expression or a Lark grammar (llguidance's dialect)."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep every candidate.

    max_tokens 0 only reads the prompt (for its log-probabilities). Before `min_tokens` no stop token ends the output.
    Penalties: `repetition` divides or multiplies logits of tokens in prompt or output (1: none), `presence` and
    `frequency` subtract from logits of tokens in the output, once or per occurrence (0: none). `logit_bias` adds to
    logits, (token id, bias) in ascending order of ids. `logprobs` k asks for the chosen token's log-probability and the
    k most likely ones at every position, `prompt_logprobs` the same for the prompt; both of the model's own law, before
    penalties, temperature and cuts. None: not asked for. The law of what follows a prompt's first `prompt_logprobs_from`
    tokens is not wanted, so their KV may come from a cache.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    grammar: Grammar | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate. `salt` separates tenants in the prefix cache; times are the host's monotonic clock.

    `speculate` False opts out of speculation, `max_drafts` caps the drafts of a step below what the engine would take.
    A lower `priority` is admitted first and preempted last; equals in order of arrival. A request not finished at
    `deadline_s` ends with the reason "deadline", wherever it is. `chunks` of the prompt are taken from where they were computed
    apart. KV tiers keep what it leaves from eviction for `pin_s`, as a session asks that will come back. With `from_tiers` its
    prefix is loaded from there, whatever the device has and whatever would be sooner: to see what comes back.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    choice: int = 0
    salt: bytes = b""
    speculate: bool = True
    max_drafts: int | None = None
    received_s: float = 0.0
    priority: int = 0
    deadline_s: float | None = None
    chunks: Chunks | None = None
    pin_s: float = 0.0
    from_tiers: bool = False

    @property
    def tenant(self) -> str | None:
        """Whose it is; None on a server without keys."""
        return Scope.of(self.salt).tenant


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural log of the probability of the token that stands at a position, and the most likely (id, log-probability)
    pairs there, highest first, ties to the lowest id."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens committed for a request in one step; with `finish_reason` ("stop", "length", "abort", "deadline", "error")
    comes the trace.

    `logprobs` has one entry per token where asked for. `prompt_logprobs` comes once, with or before the first token: one
    entry per prompt token, the first None since nothing stands before it.
    """

    request_id: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    trace: EngineTrace | None = None
    error: str | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges now and counters since start (counters only rise)."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    draft_faults: int = 0
    drafts_unasked: int = 0
    drafts_empty: int = 0
    drafts_declined: int = 0
    steps: int = 0
    requests_finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    draft_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    wasted_draft_tokens: int = 0
    draft_committed_tokens: int = 0

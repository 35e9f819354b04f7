"""What a client asks of the engine: token ids in, sampling parameters, and what comes back after each step."""

import msgspec

from netgain.ledger.records import EngineTrace


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. temperature 0 is greedy; top_k 0 and top_p 1 keep every candidate."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate. `salt` separates tenants in the prefix cache; `received_s` is the host's monotonic clock."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    choice: int = 0
    salt: bytes = b""
    speculate: bool = True
    received_s: float = 0.0


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens committed for a request in one step; with `finish_reason` ("stop", "length", "abort", "error") comes the trace."""

    request_id: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    trace: EngineTrace | None = None
    error: str | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges now and counters since start (counters only rise)."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    steps: int = 0
    requests_finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    draft_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

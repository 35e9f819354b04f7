"""Everything that one experiment on KV tiers produced, as one JSON document; terminal and HTML show only what is in it.

What is unknown is null, never 0. Times are seconds. Ratios are baseline / candidate times: above 1 the candidate is faster.
"""

from typing import Literal

import msgspec

from netgain.deciding.experiment.statistics import Effect

SCHEMA: Literal["netgain.kv-experiment"] = "netgain.kv-experiment"
VERSION: Literal[1] = 1

Word = Literal["gain", "loss", "cannot tell"]


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """Of the requests whose record tells: found tokens were on the device or came from a tier (`loaded_tokens`), the rest of
    the prompts was computed. `lengths`: requests by the tokens that were found for them, as (at most, requests), the
    first of which is (0, those without a hit)."""

    requests: int
    requests_hit: int
    requests_hit_beyond: int
    prompt_tokens: int
    found_tokens: int
    loaded_tokens: int
    computed_tokens: int
    lengths: tuple[tuple[int, int], ...]

    @property
    def request_rate(self) -> float | None:
        return self.requests_hit / self.requests if self.requests else None

    @property
    def token_rate(self) -> float | None:
        return self.found_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def token_rate_beyond(self) -> float | None:
        """Of tokens that came from beyond the device."""
        return self.loaded_tokens / self.prompt_tokens if self.prompt_tokens else None


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for the requests, by reason; and the error of the predictions behind what was decided, which are of the
    time from admission to the first token. `error`: median of |truth / prediction - 1|; `bias`: median of truth /
    prediction - 1. None: nothing was predicted."""

    why: dict[str, int]
    loads: int
    recomputes: int
    predicted: int
    error: float | None
    worst_error: float | None
    bias: float | None


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """What requests waited for. `bytes_per_s`: all bytes over all of the waiting; `slow_bytes_per_s`: one load in twenty was
    slower. `overlapped`: of the tokens loaded, those that came while what follows them was computed, so that nobody waited.
    `prefetched_used`: of the tokens fetched, those that were used."""

    requests: int
    bytes: int
    waited_mean_s: float | None
    waited_p95_s: float | None
    waited_p99_s: float | None
    bytes_per_s: float | None
    slow_bytes_per_s: float | None
    overlapped: float | None
    prefetched_used: float | None
    cut: int | None
    failed: int | None


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one tier, by its own exchanges. `p95_s` and `p99_s` are of the time of one exchange, over the last
    ones of the server's life."""

    bytes: float | None
    seconds: float | None
    p95_s: float | None
    p99_s: float | None

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.seconds if self.bytes and self.seconds else None


class TierFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of one server over a step. Objects are blocks of KV; `evicted` made room for others, `promoted` went on to a
    faster tier, `unread` and `unwritten` failed."""

    tier: str
    reading: Flow
    writing: Flow
    hits: float | None
    misses: float | None
    evicted: float | None
    promoted: float | None
    refused: float | None
    unread: float | None
    unwritten: float | None


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What looking and storing took per request: `lookup_s` before its turn, the rest behind its answer. `serialise_s`: in
    codecs (0: KV is stored as it is)."""

    lookup_s: float | None
    store_s: float | None
    store_bytes: float | None
    serialise_s: float | None


class RoleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One side of one step. `thin`: too few requests for the p95 to be anything but the slowest of them."""

    name: str
    server: str
    title: str
    requests: int
    failed: int
    ttft_mean_s: float | None
    ttft_median_s: float | None
    ttft_p95_s: float | None
    thin: bool
    e2e_mean_s: float | None
    hits: Hits
    decisions: Decisions | None = None
    loads: Loads | None = None
    tiers: tuple[TierFigures, ...] = ()
    overhead: Overhead | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate's time to first token beside the baseline's, in a word and in a sentence. `mean` is what the word goes by,
    `e2e` the whole answer's time."""

    baseline: str
    candidate: str
    word: Word
    says: str
    mean: Effect | None
    median: Effect | None
    e2e: Effect | None


class Regret(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's mean time to first token over that of the best choice, less 1; the best is whichever mean was smaller. An end
    that is None: too few prompts for an interval."""

    best: str
    regret: float
    low: float | None
    high: float | None
    says: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `compared` answers of the same prompt were set against each other, and `differing` were not the same tokens."""

    name: str
    title: str
    does: str
    roles: tuple[RoleFigures, ...]
    claims: tuple[Claim, ...]
    regret: Regret | None
    compared: int
    differing: int
    notes: tuple[str, ...] = ()


class LinkBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Through a link, prefixes of `tokens` and more are predicted to be sooner loaded than computed, by the policy's formula and
    the measured cost of steps (None: none of up to `longest` is). `latency_s` has the lookup in it. `says`: "always" (from the
    first block on), the tokens, or "never" with the longest."""

    link: str
    latency_s: float
    bytes_per_s: float
    tokens: int | None
    longest: int
    says: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, after defaults. `prompt_tokens`: what prompts were to have; `room_tokens`: of each device's KV."""

    form: Literal["quick", "full"]
    model: str
    prompt_tokens: int
    output_tokens: int
    prompts: int
    repeats: int
    room_tokens: int
    dram: str
    disk: str
    bandwidth: str | None
    latency: str | None
    settings: tuple[str, ...]
    seed: int


class KVExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """`confidence` of each interval, so that all claims together hold with 95 %. `stopped`: why it ended before all repeats were
    measured (None: it did not). `commands`: how each server was started. `break_even`: nothing where it is not known."""

    schema: Literal["netgain.kv-experiment"] = SCHEMA
    version: Literal[1] = VERSION
    created: str
    seconds: float
    asked: Asked
    confidence: float
    steps: tuple[Step, ...]
    caveats: tuple[str, ...]
    cannot_show: tuple[str, ...]
    server: dict[str, str]
    commands: dict[str, tuple[str, ...]]
    context: dict[str, str | int | float | None]
    stopped: str | None = None
    break_even: tuple[LinkBreakEven, ...] = ()

    @property
    def wrong_answers(self) -> int:
        return sum(step.differing for step in self.steps)

    @property
    def tells(self) -> bool:
        """Whether anything was shown about loading, one way or the other."""
        return any(claim.word != "cannot tell" for step in self.steps[1:] for claim in step.claims)

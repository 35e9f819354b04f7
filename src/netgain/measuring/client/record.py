"""What the timing client saw of one request: stamps of its own monotonic clock, counts with their source, the server's block."""

import math
from enum import StrEnum
from typing import Literal

import msgspec

from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import ClientStage

TokensSource = Literal["usage", "total", "chunks", "text"]


class ErrorKind(StrEnum):
    """Why a request failed, by who could not go on."""

    CONNECT = "connect"  # no connection: refused, unreachable, unknown host
    HTTP = "http"  # the server answered with a 4xx or 5xx status
    SERVER = "server"  # an error event inside the stream
    CUT = "cut"  # the stream ended before the answer did
    MALFORMED = "malformed"  # an answer that is not an OpenAI event stream
    TIMEOUT = "timeout"  # the request's own time limit
    DEADLINE = "deadline"  # the run's time limit
    CLIENT = "client"  # this process could not send (file descriptors, memory): says nothing about the server


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its sender experienced it. Latency counts from `scheduled_s`; None means unknown, never zero.

    `chunk_times_s[i]` is when the i-th chunk that carried tokens arrived and `chunk_tokens[i]` how many it carried.
    `tokens_source` is the rule behind those counts: "usage" = the server's running usage in every chunk, "total" = only
    the server's final count, spread over the chunks by length of text, "text" = the same with a count re-tokenised here,
    "chunks" = one token per chunk assumed. `text` is the answer; `reasoning` every other channel;
    `text_sha256` is of both, where a file kept neither.
    `turn`: how many times the item had been sent before in this run.
    `connect_s` is the time to open a connection for this request (0.0: an open one was reused). `resent`: the reused one was
    found closed before any answer, and the request was sent again over a new one; its times count from the first sending.
    """

    item_id: str
    category: str
    turn: int = 0
    scheduled_s: float
    sent_s: float
    finished_s: float
    first_token_s: float | None = None
    first_text_s: float | None = None
    chunk_times_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    tokens_source: TokensSource | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    connect_s: float | None = None
    resent: bool = False
    text: str = ""
    reasoning: str = ""
    text_sha256: str | None = None
    server: RequestRecord | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def lateness_s(self) -> float:
        return self.sent_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """Seconds from the scheduled time to the end; infinite for a failure, so that it counts inside percentiles."""
        return self.finished_s - self.scheduled_s if self.ok else math.inf

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the scheduled time to the first chunk with a token; infinite for a failure."""
        if not self.ok:
            return math.inf
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def first_text_after_s(self) -> float | None:
        """Seconds from the scheduled time to the first text of the answer itself (after any reasoning)."""
        if not self.ok:
            return math.inf
        return None if self.first_text_s is None else self.first_text_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first chunk: time over tokens, not over chunks; None below two chunks."""
        if not self.ok:
            return math.inf
        later = sum(self.chunk_tokens[1:])
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / later if later else None

    def token_gaps(self) -> list[tuple[float, int]]:
        """(seconds per token, tokens) of each chunk after the first: k tokens that came together waited gap / k each."""
        gaps: list[tuple[float, int]] = []
        since = self.chunk_times_s[0] if self.chunk_times_s else 0.0
        for time_s, tokens in zip(self.chunk_times_s[1:], self.chunk_tokens[1:], strict=True):
            if tokens:
                gaps.append(((time_s - since) / tokens, tokens))
                since = time_s
        return gaps

    def chunk_gaps_s(self) -> list[float]:
        """Seconds between chunks that carried tokens: what the user sees as a pause, whatever the chunk held."""
        return [later - earlier for earlier, later in zip(self.chunk_times_s, self.chunk_times_s[1:], strict=False)]

    def client_stages(self) -> dict[ClientStage, float] | None:
        """End-to-end seconds as lateness + network + server; they add up to `e2e_s`. None for a failure or without the
        server's block. Uses durations only, never a difference between the two clocks."""
        if not self.ok or self.server is None:
            return None
        server_s = self.server.finished_s - self.server.received_s
        return {
            ClientStage.LATENESS: self.lateness_s,
            ClientStage.NETWORK: self.e2e_s - self.lateness_s - server_s,
            ClientStage.SERVER: server_s,
        }

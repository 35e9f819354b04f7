"""What the timing client saw of one request: stamps of its own monotonic clock, counts with their source, the server's block."""

from typing import Literal

import msgspec

from netgain.ledger.records import RequestRecord


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its sender experienced it. Latency counts from `scheduled_s`; None means unknown, never zero.

    `chunk_times_s[i]` is when the i-th chunk that carried tokens arrived and `chunk_tokens[i]` how many it carried
    (`tokens_source`: "usage" = the server's running usage, "chunks" = one per chunk assumed, "text" = re-tokenised).
    """

    item_id: str
    category: str
    scheduled_s: float
    sent_s: float
    finished_s: float
    first_token_s: float | None = None
    first_text_s: float | None = None
    chunk_times_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    tokens_source: Literal["usage", "chunks", "text"] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    text: str = ""
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
        return self.finished_s - self.scheduled_s if self.ok else float("inf")

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the scheduled time to the first chunk with a token; infinite for a failure."""
        if not self.ok:
            return float("inf")
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first chunk: time over tokens, not over chunks; None below two chunks."""
        if not self.ok:
            return float("inf")
        later = sum(self.chunk_tokens[1:])
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / later if later else None

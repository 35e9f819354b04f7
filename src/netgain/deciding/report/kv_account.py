"""What tiers beyond the device gave the requests of an arm, and what it cost them: by the records of the answers, so measured."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from netgain.ledger.records import KVReuse
from netgain.measuring.client.record import ClientRecord


class KVAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Of an arm's requests that asked tiers (`asked`). `lengths`: tokens of each load; `waits_s`: how long each was waited for;
    `forms`: how many came in which forms (raw is one). `beaten`: loads whose first token came later than computing everything was
    predicted to bring it. First tokens: of requests that loaded, and of those for which nothing was found."""

    asked: int
    prompt_tokens: int
    loaded_tokens: int
    lengths: tuple[int, ...] = ()
    lookups_s: tuple[float, ...] = ()
    waits_s: tuple[float, ...] = ()
    raw_bytes: int = 0
    moved_bytes: int = 0
    decode_s: float = 0.0
    forms: dict[str, int] = {}
    beaten: int = 0
    ttft_loaded_s: tuple[float, ...] = ()
    ttft_nothing_s: tuple[float, ...] = ()

    @property
    def hit_share(self) -> float | None:
        """Of prompt tokens, those that were loaded."""
        return self.loaded_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ratio(self) -> float | None:
        """Bytes of KV over the bytes that came for them, headers and tables among those."""
        return self.raw_bytes / self.moved_bytes if self.moved_bytes else None

    @property
    def decoded_per_s(self) -> float | None:
        """Bytes of KV made per second of decoding."""
        return self.raw_bytes / self.decode_s if self.decode_s and self.coded else None

    @property
    def coded(self) -> int:
        """Loads of which something came in another form than raw."""
        return sum(count for form, count in self.forms.items() if form != "raw")


def kv_account(records: Iterable[ClientRecord]) -> KVAccount | None:
    """None where no answer tells of tiers."""
    told = [
        (record, server.prompt_tokens, server.kv)
        for record in records
        if record.ok and (server := record.server) is not None and server.kv is not None
    ]
    if not told:
        return None
    loads = [(record, kv) for record, _, kv in told if kv.loaded_tokens]
    return KVAccount(
        asked=len(told),
        prompt_tokens=sum(prompt for _, prompt, _ in told),
        loaded_tokens=sum(kv.loaded_tokens for _, kv in loads),
        lengths=tuple(kv.loaded_tokens for _, kv in loads),
        lookups_s=tuple(kv.lookup_s for _, _, kv in told if kv.lookup_s is not None),
        waits_s=tuple(kv.waited_s for _, kv in loads),
        raw_bytes=sum(kv.bytes for _, kv in loads),
        moved_bytes=sum(kv.moved_bytes for _, kv in loads),
        decode_s=sum(kv.decode_s for _, kv in loads),
        forms=dict(Counter(kv.codecs or "raw" for _, kv in loads)),
        beaten=sum(_beaten(kv) for _, kv in loads),
        ttft_loaded_s=_first(record for record, _ in loads),
        ttft_nothing_s=_first(record for record, _, kv in told if not kv.found_tokens and not kv.loaded_tokens),
    )


def _beaten(kv: KVReuse) -> bool:
    return kv.actual_s is not None and kv.full_s is not None and kv.actual_s > kv.full_s


def _first(records: Iterable[ClientRecord]) -> tuple[float, ...]:
    return tuple(record.ttft_s for record in records if record.ttft_s is not None)


def median(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return statistics.median(values) if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """None of nothing."""
    return float(np.quantile(values, share)) if values else None

"""What joining chunks did since the start, for metrics."""

from types import MappingProxyType

NAMES = MappingProxyType(
    {
        "requests": "prompts with chunks",
        "exact_requests": "of them computed whole",
        "chunks_found": "in memory when they were joined",
        "chunks_missed": "computed by themselves",
        "chunks_fetched": "brought into memory from tiers",
        "chunks_left": "in tiers, and predicted to be sooner computed",
        "chunk_tokens": "in chunks",
        "recomputed_tokens": "of them computed anew, on the mean of the layers",
        "alone_tokens": "computed by themselves",
        "rotation_s": "moving keys to their places, and writing them there",
        "alone_s": "computing chunks by themselves",
        "join_s": "computing prompts with chunks, the other two left out",
    }
)


class Tally:
    """Written by one thread; read from any."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = dict.fromkeys(NAMES, 0.0)

    def add(self, name: str, amount: float = 1) -> None:
        """Raises KeyError for what is not counted."""
        self._counts[name] += amount

    def counters(self) -> dict[str, float]:
        """Cumulative, as kv_metrics.COUNTERS names them."""
        return {f"blend_{name}": amount for name, amount in self._counts.items()}

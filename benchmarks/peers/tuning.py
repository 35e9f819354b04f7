"""How many tokens of a prompt llama.cpp computes at once (`-ub`): tried once per machine and file of weights, the best kept."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

UBATCHES = (128, 256, 512, 1024)
DEFAULT = 512  # llama.cpp's own
ROUNDS = 3


class Tuned(msgspec.Struct, frozen=True):
    """`prefill_tokens_per_s`: of every value that was tried, by length of prompt; empty: none was."""

    ubatch: int = DEFAULT
    prefill_tokens_per_s: dict[str, list[float]] = {}


Rates = Mapping[int, Sequence[Sequence[float]]]
"""ubatch -> one sequence of tokens per second for each length of prompt."""


def best(rates: Rates) -> int:
    """The ubatch whose prompts are read at the highest rate: the geometric mean over lengths of each length's median. Of equal
    ones the smaller, which takes less memory. Raises ValueError without any."""

    def rate(ubatch: int) -> float:
        return math.fsum(math.log(statistics.median(seen)) for seen in rates[ubatch])

    return max(sorted(rates), key=rate)


def keep(kind: str, rates: Rates, home: Path) -> int:
    """Write what was tried for this file of weights into llama.cpp's folder and return the best."""
    found = best(rates)
    tried = {str(ubatch): [statistics.median(seen) for seen in lengths] for ubatch, lengths in rates.items()}
    _path(kind, home).write_bytes(msgspec.json.encode(Tuned(found, tried)))
    return found


def tuned(kind: str, home: Path) -> Tuned:
    """What `keep` wrote; llama.cpp's default where nothing was tried."""
    try:
        return msgspec.json.decode(_path(kind, home).read_bytes(), type=Tuned)
    except (FileNotFoundError, msgspec.DecodeError):
        return Tuned()


def _path(kind: str, home: Path) -> Path:
    return home / f"{kind}.ubatch.json"

"""The server under load, what its greedy answers are, and what happened to those who asked."""

from collections import Counter
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Tally:
    """What happened: requests by kind and by outcome, and what should not have."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    wrong: int = 0
    hung: int = 0
    faults: list[str] = field(default_factory=list)
    rests: list[dict[str, int]] = field(default_factory=list)  # what was above the first level, at every look

    def fault(self, text: str) -> None:
        if len(self.faults) < 40:
            self.faults.append(text)
        self.outcomes["unexpected"] += 1


@dataclass
class World:
    """The server under load, what its greedy answers are, and when its engine was lost on purpose."""

    url: str
    key: str
    poor_key: str
    operator_key: str
    tally: Tally
    hung_after_s: float
    references: dict[tuple[int, float], "Reference"] = field(default_factory=dict)
    down_until_s: float = 0.0

    def engine_may_be_lost(self, started_s: float) -> bool:
        return started_s <= self.down_until_s

    def session(self, key: str | None = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key or self.key}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )


@dataclass(frozen=True)
class Reference:
    """An answer of the idle server."""

    ids: tuple[int, ...]
    text: str


@dataclass
class Outcome:
    """What came back for one request. `error` is the code of an error, before the answer or as a stream's last event."""

    status: int
    texts: dict[int, str] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    error: str | None = None
    message: str = ""
    complete: bool = False
    retry_after: str | None = None

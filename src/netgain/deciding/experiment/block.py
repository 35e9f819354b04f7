"""One turn of one arm: what was measured around its requests."""

import msgspec


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One arm answering one group under one start of the servers. None = cannot be seen.

    `idle_cpu` is each idle arm's CPU seconds per second of the block; `foreign_cpu` the cores used by processes that belong
    to no arm and are not this client.
    """

    index: int
    group: int
    repeat: int
    arm: str
    started_s: float
    finished_s: float
    idle_cpu: dict[str, float]
    foreign_cpu: float | None
    lateness_p99_s: float | None
    client_void: str | None
    output_tokens: int | None
    start: int = 0

    @property
    def seconds(self) -> float:
        return self.finished_s - self.started_s

"""One turn of one arm: what was measured around its requests."""

import msgspec


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One arm answering one group under one start of the servers. None = cannot be seen.

    `idle_cpu` is each idle arm's CPU seconds per second of the block; `foreign_cpu` the cores used by processes that belong
    to no arm and are not this client. `e2e_median_s`: end-to-end time of the median request, failed ones being slower than all
    (None: the median failed); `concurrency`: requests in flight at most (None: they came at a rate).
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
    e2e_median_s: float | None = None
    concurrency: int | None = None

    @property
    def seconds(self) -> float:
        return self.finished_s - self.started_s

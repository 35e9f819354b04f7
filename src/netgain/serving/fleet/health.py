"""What is said of replicas to the outside: their state, and for a state that serves nothing the cause."""

from enum import StrEnum
from typing import Any

import msgspec

from netgain.serving.engine.request import EngineStats


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    RESTARTING = "restarting"
    CLOSED = "closed"


class ReplicaHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One replica now. `cause` is why it does not serve, or why it was last restarted; `pid` None: no process.
    `stats` and `counters` are the running process's last report, up to a heartbeat old; None and empty without one. `info` is
    what the engine said of itself when it was last built."""

    name: str
    state: ReplicaState
    info: dict[str, Any]
    cause: str | None
    restarts: int
    pid: int | None
    in_flight: int
    stats: EngineStats | None
    counters: dict[str, float]


class FleetHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet serves when one replica does; else `cause` says why not."""

    ready: bool
    cause: str | None
    replicas: tuple[ReplicaHealth, ...]

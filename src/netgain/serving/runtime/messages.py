"""What the fleet and an engine process say to each other: a closed set of messages, told apart by their tag."""

from typing import Any

import msgspec

from netgain.serving.engine.request import EngineStats, Output, Request


class Configure(msgspec.Struct, frozen=True, tag=True):
    """First message to an engine process: build this. `engine` is an EngineConfig as JSON."""

    engine: bytes
    heartbeat_s: float


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Generate; answered by Outputs that name the request, or by Refused."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Give up a request in whatever state; unknown ids are ignored (it may have just finished)."""

    request_id: str


class MeasureStepCost(msgspec.Struct, frozen=True, tag=True):
    """What a step costs: the curve in use if there is one for such batches and it need not be `fresh`, else one measured now
    for about `budget_s` seconds; answered by StepCostMeasured with the same `call`."""

    call: int
    budget_s: float
    largest_batch: int
    fresh: bool


class PurgeCache(msgspec.Struct, frozen=True, tag=True):
    """Forget the cached KV of these tenants (None among them: who came without a key), or of all (None); answered by CachePurged
    with the same `call`."""

    call: int
    tenants: tuple[str | None, ...] | None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process; requests in flight are given up."""


ToEngine = Configure | Submit | Abort | MeasureStepCost | PurgeCache | Stop


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine is built. `info` says what it really is: the fields of EngineInfo."""

    info: dict[str, Any]


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """What one turn of the step loop committed and ended, and when that was. `gap` is from the end of the turn before to
    the start of this one, while the loop was sending and receiving (None: there was no work before)."""

    outputs: tuple[Output, ...]
    ended_s: float
    gap: tuple[float, float] | None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The engine did not take a request. `overloaded`: it may succeed later; else `parameter` names what to change."""

    request_id: str
    message: str
    parameter: str | None
    overloaded: bool


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, sent at the agreed pace on a connection of its own: gauges and counters, the collector's counters since
    the process started and what is known of the step-cost curve, and how long the current step has run (None: between steps)."""

    stats: EngineStats
    counters: dict[str, float]
    in_step_s: float | None


class StepCostMeasured(msgspec.Struct, frozen=True, tag=True):
    """Answer to MeasureStepCost: a StepCost as JSON, or why there is none."""

    call: int
    cost: bytes | None
    error: str | None = None


class CachePurged(msgspec.Struct, frozen=True, tag=True):
    """Answer to PurgeCache: an EnginePurged as JSON."""

    call: int
    report: bytes


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The process is about to exit and says why. `usage`: the configuration cannot work, so a restart would not help."""

    reason: str
    usage: bool = False


FromEngine = Ready | Outputs | Refused | Heartbeat | StepCostMeasured | CachePurged | Failed

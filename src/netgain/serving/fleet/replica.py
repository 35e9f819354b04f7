"""One engine process after another under the same name: launched, watched, and replaced when it dies or hangs."""

import asyncio
import contextlib
import logging
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netgain.errors import NetgainError, Overloaded, RequestRejected, Unavailable, UsageError
from netgain.serving.blocks.scope import Tenants
from netgain.serving.engine.request import Request
from netgain.serving.fleet.calls import Calls
from netgain.serving.fleet.health import ReplicaHealth, ReplicaState
from netgain.serving.fleet.life import Life
from netgain.serving.fleet.pace import Pace
from netgain.serving.fleet.process import ManagedProcess
from netgain.serving.fleet.reply import Delivery, EngineLost, Loss, Receiver, Ticket
from netgain.serving.runtime.config import EngineConfig, FleetSettings
from netgain.serving.runtime.messages import (
    Abort,
    CachePurged,
    Configure,
    Failed,
    FromEngine,
    Heartbeat,
    MeasureStepCost,
    Outputs,
    PurgeCache,
    Ready,
    Refused,
    StepCostMeasured,
    Stop,
    Submit,
)
from netgain.serving.runtime.wire import Channel

logger = logging.getLogger("netgain.fleet")

COMMAND = (sys.executable, "-m", "netgain.serving.runtime.engine_process")

_EXIT_AFTER_CLOSE_S = 1.0
_STEADY_S = 60.0
_STEP_COST_MARGIN_S = 60.0
_PURGE_S = 600.0  # every header in a large bucket is read


class Replica:
    """Owns its engine process from `start` to `close`; requests are told when the process that holds them ends."""

    def __init__(
        self, name: str, config: EngineConfig, settings: FleetSettings, command: Sequence[str] = COMMAND
    ) -> None:
        self.name = name
        self._config = config
        self._settings = settings
        self._command = tuple(command)
        self._state = ReplicaState.STARTING
        self._cause: str | None = None
        self._restarts = 0
        self._info: dict[str, Any] = {}
        self._report: Heartbeat | None = None
        self._pace = Pace()
        self._tickets: dict[str, Ticket] = {}
        self._calls = Calls()
        self._life: Life | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._first_outcome: asyncio.Future[None] | None = None
        self._launched = asyncio.Event()  # or could not be
        self._may_build = asyncio.Event()
        self._closing = asyncio.Event()
        self._given_up = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self._state is ReplicaState.READY

    @property
    def in_flight(self) -> int:
        return len(self._tickets)

    def health(self) -> ReplicaHealth:
        return ReplicaHealth(
            name=self.name,
            state=self._state,
            info=self._info,
            cause=self._cause,
            restarts=self._restarts,
            pid=self._life.process.pid if self._life else None,
            in_flight=self.in_flight,
            stats=self._report.stats if self._report else None,
            counters=self._report.counters if self._report else {},
        )

    async def launch(self) -> None:
        """Start the process, which loads its libraries and then waits to be told what to build: `start` tells it, and says
        what went wrong. Until then whoever launched it can do other work, or `close` it."""
        if self._supervisor is None:
            self._first_outcome = asyncio.get_running_loop().create_future()
            self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")
        await self._launched.wait()

    async def start(self) -> None:
        """Launch, if that was not done, and wait until ready. Raises UsageError (the configuration cannot work) or
        Unavailable; nothing runs then."""
        try:
            await self.launch()
            self._may_build.set()
            assert self._first_outcome is not None
            await self._first_outcome
        except BaseException:
            await self.close()
            raise

    def submit(self, request: Request, receiver: Receiver) -> Ticket:
        """Hand a request over. Raises Unavailable, naming the cause, when the engine is not ready."""
        if self._life is None or not self.ready:
            raise Unavailable(self.why_not_ready())
        ticket = Ticket(request.id, receiver, self._abort)
        self._life.channel.send(Submit(request))  # first: what cannot be sent leaves no ticket behind
        self._tickets[request.id] = ticket
        return ticket

    async def step_cost(self, budget_s: float, largest_batch: int, fresh: bool) -> bytes:
        """A StepCost as JSON, measured (if need be) while no request runs. Raises Unavailable, or Overloaded when the engine is
        busy."""
        if self._life is None or not self.ready:
            raise Unavailable(self.why_not_ready())
        send = self._life.channel.send
        return await self._calls.ask(
            lambda call: send(MeasureStepCost(call, budget_s, largest_batch, fresh)),
            budget_s + _STEP_COST_MARGIN_S,
            "measure its step cost",
        )

    async def purge_cache(self, tenants: Tenants) -> bytes:
        """Forget the cached KV of tenants; an EnginePurged as JSON. Raises Unavailable."""
        if self._life is None or not self.ready:
            raise Unavailable(self.why_not_ready())
        send, named = self._life.channel.send, None if tenants is None else tuple(tenants)
        return await self._calls.ask(lambda call: send(PurgeCache(call, named)), _PURGE_S, "purge its cache")

    async def given_up(self) -> None:
        """Wait until no further process will be started, because none lived for long; `health` has the cause."""
        await self._given_up.wait()

    async def close(self) -> None:
        """End the process and everything it started; requests in flight are told. May be called twice."""
        self._state, self._cause = ReplicaState.CLOSED, "the server is shutting down"
        self._fail_all(self._cause)
        self._closing.set()
        if self._life is not None:
            self._life.channel.send(Stop())
            self._life.end("was told to stop")
        if self._supervisor is not None:
            await self._supervisor
        outcome = self._first_outcome
        if outcome is not None and outcome.done() and not outcome.cancelled():  # who waits for it may be interrupted
            outcome.exception()  # looked at, also where nobody waited for it

    async def _supervise(self) -> None:
        failures = 0
        while True:
            started_s = time.monotonic()
            failure = await self._live()
            self._launched.set()
            if self._closing.is_set():
                failure = Unavailable("the server is shutting down")
            assert self._first_outcome is not None
            if not self._first_outcome.done():
                self._first_outcome.set_exception(failure)
                return
            if self._closing.is_set():
                return
            failures = 1 if time.monotonic() - started_s > _STEADY_S else failures + 1
            if failures >= self._settings.max_failures:
                self._cause = f"it failed {failures} times in a row and is not started again; the last time: {failure}"
                self._given_up.set()
                return
            backoff_s = min(
                self._settings.restart_backoff_s * 2.0 ** min(failures - 1, 16), self._settings.restart_backoff_max_s
            )
            logger.error("%s; restarting %s in %.1f s", failure, self.name, backoff_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff_s)
            if self._closing.is_set():
                return
            self._restarts += 1
            self._state = ReplicaState.RESTARTING

    async def _live(self) -> NetgainError:
        """One process from launch to end; returns why it ended and leaves none behind."""
        try:
            with (
                tempfile.TemporaryDirectory(prefix="netgain-", dir=_short_directory()) as directory,
                socket.socket(socket.AF_UNIX) as listener,
            ):
                path = str(Path(directory) / "engine.sock")  # the directory belongs to this user alone
                listener.setblocking(False)
                listener.bind(path)
                listener.listen(1)
                process = await ManagedProcess.launch((*self._command, "--socket", path), "engine process")
                life = self._life = Life(process, self._received, self._closed)
                self._launched.set()
                greeting = asyncio.create_task(self._greet(listener, life))
                try:
                    failure = await self._watch(life)
                    self._went_down(failure)
                    return failure
                finally:
                    self._life = self._report = None
                    self._pace = Pace()
                    greeting.cancel()
                    # one that is still loading has nothing to bring to an end, and may not hear SIGTERM for seconds
                    patient = self._closing.is_set() and life.ready
                    await process.stop(self._settings.stop_timeout_s if patient else 0.0)
                    life.channel.close()
                    life.pulse.close()
        except Exception as error:  # whatever it is, the replica must stay supervised
            logger.exception("%s cannot be run", self.name)
            failure = Unavailable(f"cannot run an engine process: {type(error).__name__}: {error}")
            self._went_down(failure)
            return failure

    async def _greet(self, listener: socket.socket, life: Life) -> None:
        """Take the process's two connections: the one on which it is told what to build, and that of its heartbeats."""
        await _accept(listener, life.channel)
        await self._may_build.wait()
        life.heard_s = time.monotonic()  # the time to get ready in begins
        life.channel.send(Configure(self._config.model_dump_json().encode(), self._settings.heartbeat_s))
        await _accept(listener, life.pulse)

    async def _watch(self, life: Life) -> NetgainError:
        if self._closing.is_set():
            life.end("was told to stop")
        exited = asyncio.create_task(life.process.wait())
        watchdog = asyncio.create_task(self._bite(life))
        try:
            await asyncio.wait({exited, life.ended}, return_when=asyncio.FIRST_COMPLETED)
            if self.ready:  # new requests are refused from this moment, though the cause takes a little longer
                self._state, self._cause = ReplicaState.FAILED, f"engine process {life.process.pid} ended"
            interrupted = self._closing.is_set() and not life.ready  # in a load that nobody waits for
            if not exited.done() and not watchdog.done() and not interrupted:
                await asyncio.wait({exited}, timeout=_EXIT_AFTER_CLOSE_S)
            if life.failed is not None:
                return (UsageError if life.failed.usage else Unavailable)(life.failed.reason)
            if exited.done():
                last = life.process.tail[-1:]
                return Unavailable("; ".join((exited.result(), *(f"its last log line: {line}" for line in last))))
            return Unavailable(f"engine process {life.process.pid} {life.ended.result()}; it was killed")
        finally:
            for task in (exited, watchdog):
                task.cancel()

    def _went_down(self, failure: NetgainError) -> None:
        if not self._closing.is_set():
            self._state, self._cause = ReplicaState.FAILED, str(failure)
        self._fail_all(str(self._cause))

    async def _bite(self, life: Life) -> None:
        """End a life that shows no sign of itself in time."""
        pace_s = min(0.25, self._settings.hang_timeout_s / 4)
        woke_s = time.monotonic()
        while True:
            await asyncio.sleep(pace_s)
            overslept = time.monotonic() - woke_s > pace_s + 0.5 * self._settings.hang_timeout_s
            woke_s = time.monotonic()
            if overslept:
                life.heard_s = woke_s  # it was us who did not listen (a suspended machine, a stopped server)
                continue
            silence_s = woke_s - life.heard_s
            limit_s = self._settings.hang_timeout_s if life.ready else self._settings.start_timeout_s
            if silence_s > limit_s:
                doing = "gave no sign of life" if life.ready else "was not ready"
                return life.end(f"{doing} for {silence_s:.1f} s")
            if life.in_step_s is not None and life.in_step_s > self._settings.step_timeout_s:
                return life.end(f"has been in one step for {life.in_step_s:.0f} s")

    def _received(self, life: Life, message: FromEngine) -> None:
        life.heard_s = time.monotonic()
        match message:
            case Outputs(outputs, ended_s, gap):
                for output in outputs:
                    ticket = self._tickets.get(output.request_id)
                    if ticket is not None:
                        if output.finish_reason is not None:
                            del self._tickets[output.request_id]
                        ticket.tell(Delivery(output, ended_s, gap))
            case Heartbeat():
                self._report = message
                self._pace.note(life.heard_s, message.stats.requests_finished)
                life.in_step_s = message.in_step_s
            case Refused(request_id, text, parameter, overloaded):
                ticket = self._tickets.pop(request_id, None)
                if ticket is not None:
                    error = (
                        Overloaded(text, self._pace.seconds_per_request())
                        if overloaded
                        else RequestRejected(text, parameter)
                    )
                    ticket.tell(Loss(request_id, error))
            case StepCostMeasured(call, cost, error):
                self._calls.answered(call, Overloaded(error or "no step cost was measured") if cost is None else cost)
            case CachePurged(call, report):
                self._calls.answered(call, report)
            case Ready(info):
                life.ready = True
                self._info = info
                if self._state is not ReplicaState.CLOSED:
                    self._state = ReplicaState.READY
                    logger.info("%s is ready (pid %d)", self.name, life.process.pid)
                if self._first_outcome is not None and not self._first_outcome.done():
                    self._first_outcome.set_result(None)
            case Failed():
                life.failed = message
                life.end(message.reason)

    def _closed(self, life: Life, cause: Exception | None) -> None:
        life.end(f"closed its connection{f' ({cause})' if cause else ''} but did not exit")

    def _abort(self, request_id: str) -> None:
        if self._life is not None:
            self._life.channel.send(Abort(request_id))

    def _fail_all(self, cause: str) -> None:
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.tell(Loss(ticket.request_id, EngineLost(cause)))
        self._calls.fail_all(EngineLost(cause))

    def why_not_ready(self) -> str:
        """For messages: the state and, where known, its cause."""
        cause = f": {self._cause}" if self._cause else ""
        return f"{self.name} is {self._state}{cause}"


async def _accept(listener: socket.socket, channel: Channel[FromEngine]) -> None:
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    await loop.connect_accepted_socket(lambda: channel, connection)


def _short_directory() -> str | None:
    """Where socket paths stay within the 107 bytes that Unix allows; None: the usual temporary directory does."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None

"""Main of an engine process: builds one engine, runs its step loop, and talks to the fleet over a Unix socket. It ends with
its connection, so that it never outlives the server that started it."""

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import msgspec

from netgain.errors import NetgainError, UsageError
from netgain.event_loop import new_loop
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import StepRecord
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.protocols import Executor
from netgain.serving.engine.purging import EnginePurged, Purging
from netgain.serving.engine.request import Output
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.draft_memory import DraftMemory
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
    StepCostMeasured,
    Stop,
    Submit,
    ToEngine,
)
from netgain.serving.runtime.preparing import Preparing
from netgain.serving.runtime.uncollected import uncollected
from netgain.serving.runtime.wire import Channel, encode

EXIT_CRASHED = 70
EXIT_USAGE = 2
_CONNECT_TIMEOUT_S = 30.0
_LAST_WORDS_TIMEOUT_S = 2.0
_PR_SET_PDEATHSIG = 1


def main(options: Sequence[str] | None = None, wrap_executor: Callable[[Executor], Executor] | None = None) -> None:
    """Entry point of `python -m netgain.serving.runtime.engine_process --socket PATH`. The wrapper lets a benchmark put another
    executor in the place of the one that was built."""
    parser = argparse.ArgumentParser(description="An engine process; started by the fleet, not by hand.")
    parser.add_argument("--socket", required=True, help="Unix socket of the fleet")
    arguments = parser.parse_args(options)
    _die_with_parent()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run_and_exit(_Process(arguments.socket, wrap_executor or (lambda executor: executor))))


async def _run_and_exit(process: "_Process") -> None:
    code = await process.run()
    sys.stdout.flush()
    sys.stderr.flush()
    # a thread may still be inside a load or a step that nobody waits for; the ordinary way out would join it
    os._exit(code)


class _Process:
    """The state of one engine process between its connection's start and end."""

    def __init__(self, socket_path: str, wrap_executor: Callable[[Executor], Executor]) -> None:
        self._socket_path = socket_path
        self._wrap_executor = wrap_executor
        self._inbox: list[ToEngine] = []
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._stopping = False
        self._step_started_s: float | None = None
        self._report = threading.Event()  # now, not only when the period is over
        self._channel: Channel[ToEngine] = Channel(ToEngine, self._received, self._closed)
        self._engine: Engine | None = None
        self._purging: Purging | None = None
        self._preparing = Preparing(self._say, self._interrupt)

    async def run(self) -> int:
        """Serve until told to stop, the connection ends, or the engine fails. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await loop.create_unix_connection(lambda: self._channel, self._socket_path)
        serving = asyncio.create_task(self._serve_or_explain())
        gone = asyncio.create_task(self._gone.wait())
        # when the fleet is gone nobody needs what a long load or step would still bring: leave in the middle of it
        await asyncio.wait({serving, gone}, return_when=asyncio.FIRST_COMPLETED)
        return serving.result() if serving.done() else 0

    async def _serve_or_explain(self) -> int:
        try:
            await self._serve()
            return 0
        except Exception as error:
            named = isinstance(error, NetgainError)
            if not named:
                traceback.print_exc()
            usage = isinstance(error, UsageError)
            await self._say_last(Failed(str(error) if named else f"{type(error).__name__}: {error}", usage))
            return EXIT_USAGE if usage else EXIT_CRASHED

    async def _serve(self) -> None:
        with uncollected():
            # loads torch: only once a fleet is there to serve, and while that one gets ready to say what to build
            from netgain.serving.runtime.build import build_engine

            configure = await self._first_message()
            if configure is None:
                return
            config = EngineConfig.model_validate_json(configure.engine)
            collector = Collector()
            built = await asyncio.to_thread(
                build_engine, config, WallClock(), collector, wrap_executor=self._wrap_executor
            )
        self._engine, self._purging = built.engine, built.purging
        try:
            self._say(Ready(msgspec.to_builtins(built.info)))
            threading.Thread(
                target=self._heartbeats,
                args=(built.engine, collector, built.draft_memory, configure.heartbeat_s),
                daemon=True,
            ).start()
            loop = asyncio.get_running_loop()
            built.engine.wake_by(lambda: _wake(loop, self._wake))
            await self._loop(built.engine, collector)
        finally:
            built.engine.close()

    async def _loop(self, engine: Engine, collector: Collector) -> None:
        """Take messages between steps, never during one."""
        previous: StepRecord | None = None
        idle_since_s = time.monotonic()
        while not self._stopping:
            await self._take_messages(engine)
            if engine.has_work:
                self._step_started_s = time.monotonic()
                outputs = await engine.step()
                self._step_started_s = None
                step = collector.steps[-1] if collector.steps else None
                if outputs:
                    self._say(_outputs(outputs, step, previous))
                previous = step
                idle_since_s = time.monotonic()
                await _let_in()
            elif not self._inbox and not self._preparing.ready and not self._stopping:
                if previous is not None:
                    self._report.set()  # else the gauges of a busy moment stand until the next heartbeat
                previous = None
                self._wake.clear()
                await self._rest(engine, time.monotonic() - idle_since_s)

    async def _rest(self, engine: Engine, idle_s: float) -> None:
        """Wait for a message, or run one step of the engine's upkeep when it is time for it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), engine.upkeep_in_s(idle_s))
            return
        self._step_started_s = time.monotonic()
        await engine.keep_up()
        self._step_started_s = None
        await _let_in()

    async def _take_messages(self, engine: Engine) -> None:
        self._preparing.hand_over(engine)
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            match message:
                case Submit(request):
                    self._preparing.submit(engine, request)
                case Abort(request_id):
                    self._preparing.abort(engine, request_id)
                case MeasureStepCost():
                    await self._measure(engine, message)
                case PurgeCache():
                    self._purge(message)
                case Stop():
                    self._stop()
                case Configure():
                    raise RuntimeError("a second Configure came; an engine process is configured once")

    async def _measure(self, engine: Engine, asked: MeasureStepCost) -> None:
        cost = engine.step_curve.cost
        if asked.fresh or cost is None or cost.largest_batch < asked.largest_batch:
            try:
                cost = await engine.measure_step_cost(asked.budget_s, asked.largest_batch)
            except NetgainError as error:
                self._say(StepCostMeasured(asked.call, None, str(error)))
                return
        self._say(StepCostMeasured(asked.call, cost.to_json()))

    def _purge(self, asked: PurgeCache) -> None:
        loop = asyncio.get_running_loop()

        def done(purged: EnginePurged) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits for the answer
                loop.call_soon_threadsafe(self._say, CachePurged(asked.call, msgspec.json.encode(purged)))

        assert self._purging is not None
        self._purging.purge(None if asked.tenants is None else frozenset(asked.tenants), done)

    def _heartbeats(self, engine: Engine, collector: Collector, draft_memory: DraftMemory, period_s: float) -> None:
        """Runs on a thread and a connection of its own, since a step occupies the event loop for as long as it takes."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as pulse:
            pulse.connect(self._socket_path)
            while True:
                started_s = self._step_started_s
                in_step_s = None if started_s is None else time.monotonic() - started_s
                counters = collector.counters() | engine.step_curve.gauges() | engine.tier_counters()
                counters |= draft_memory.gauges()
                pulse.sendall(encode(Heartbeat(engine.stats(), counters, in_step_s)))
                self._report.wait(period_s)
                self._report.clear()

    async def _first_message(self) -> Configure | None:
        """What to build; None when told to stop instead."""
        while not self._inbox:
            if self._stopping:
                return None
            self._wake.clear()
            await self._wake.wait()
        first = self._inbox.pop(0)
        if not isinstance(first, Configure):
            raise RuntimeError(f"the first message was {type(first).__name__}, not Configure")
        return first

    def _say(self, message: FromEngine) -> None:
        self._channel.send(message)

    async def _say_last(self, message: FromEngine) -> None:
        self._say(message)
        await self._channel.drain(_LAST_WORDS_TIMEOUT_S)

    def _received(self, message: ToEngine) -> None:
        self._inbox.append(message)
        self._interrupt()

    def _closed(self, cause: Exception | None) -> None:
        if cause is not None:
            print(f"connection to the fleet lost: {cause}", file=sys.stderr)
        self._gone.set()
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._wake.set()
        if self._engine is not None:
            self._engine.interrupt()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody is to be woken
        loop.call_soon_threadsafe(event.set)


async def _let_in() -> None:
    """The event loop reads the socket in the first of these turns and delivers what it read before the second ends."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _outputs(outputs: list[Output], step: StepRecord | None, previous: StepRecord | None) -> Outputs:
    """`step` is the newest record; it is the same as `previous` when this turn computed nothing."""
    if step is None or step is previous:
        return Outputs(tuple(outputs), time.monotonic(), None)
    gap = None if previous is None else (previous.finished_s, step.started_s)
    return Outputs(tuple(outputs), step.finished_s, gap)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; even a stopped process leaves then. Elsewhere the connection's
    end is the only sign."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()

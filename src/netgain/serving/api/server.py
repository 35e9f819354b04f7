"""The server process: binds its port, starts the fleet, serves until a signal, and leaves no process behind."""

import asyncio
import contextlib
import errno
import logging
import math
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from netgain.errors import Unavailable, UsageError
from netgain.ledger.export import JsonlWriter
from netgain.serving.api.app import build_app
from netgain.serving.api.auth import Authenticator
from netgain.serving.api.connection import bounded_by
from netgain.serving.api.launch import SIGNALS, interruptible
from netgain.serving.api.lifecycle import Lifecycle
from netgain.serving.api.metrics import Metrics
from netgain.serving.api.served import ServedModel
from netgain.serving.api.traced import start_tracing
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.runtime.config import ServerConfig
from netgain.serving.runtime.uncollected import uncollected

logger = logging.getLogger("netgain.server")

_SHUTDOWN_S = 3
_OTHER_FILES = 256


async def run_server(
    config: ServerConfig, fleet: Fleet, announce: Callable[[str, Mapping[str, Any], int | None], None]
) -> None:
    """Serve until a signal, with a fleet that may be launched already and is closed at the end. `announce` gets the URL, what
    the engine says of itself, and how many API keys are accepted (None: none is asked for), once requests are taken.

    The first SIGINT or SIGTERM refuses new requests and lets running ones finish within `server.drain_timeout_s`; a second
    one ends them. Raises UsageError (port in use, model, key file or setting that cannot work), Unavailable (model fetch,
    engine start, an engine that fails again and again), or KeyboardInterrupt (a signal while the model was fetched, or a
    second one).
    """
    authenticator = None if config.auth.keys_file is None else Authenticator(Path(config.auth.keys_file))
    _allow_open_files(config.server.max_connections)
    listener = _bind(config.host, config.port, config.send_buffer_bytes)
    with contextlib.closing(listener):
        with interruptible(), uncollected():  # it may fetch for minutes; nothing else runs in this process yet
            checkpoint = open_checkpoint(config.engine.model.source)
            checkpoint.tokenizer.ready()
        signals = _Signals()
        signals.listen(authenticator)
        if config.records is not None:
            JsonlWriter(Path(config.records)).close()  # said before the engine is waited for, not after
        tracing = start_tracing(config.tracing)
        try:
            if not await _unless(signals.first, fleet.start()):
                return
            served = ServedModel(checkpoint, fleet.info, config.api)
            metrics = Metrics(served, config.records, tracing)
            lifecycle = Lifecycle()
            watching = None if authenticator is None else asyncio.create_task(authenticator.watch())
            try:
                server = _Server(
                    uvicorn.Config(
                        build_app(config, fleet, served, metrics, lifecycle, authenticator),
                        http=bounded_by(config.server),
                        ws="none",
                        lifespan="off",
                        log_config=None,
                        access_log=False,
                        server_header=False,
                        timeout_keep_alive=math.ceil(config.server.idle_timeout_s),
                        timeout_graceful_shutdown=_SHUTDOWN_S,
                    )
                )
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                while not (server.started or serving.done()):
                    await asyncio.sleep(0.01)
                if server.started:
                    announce(_url(listener), fleet.info, None if authenticator is None else authenticator.count)
                lost = asyncio.create_task(fleet.given_up())
                signalled = asyncio.create_task(signals.first.wait())
                await asyncio.wait({serving, lost, signalled}, return_when=asyncio.FIRST_COMPLETED)
                signalled.cancel()
                lost.cancel()
                if not lost.done():
                    await _drain(lifecycle, signals, config.server.drain_timeout_s)
                await fleet.close()  # open streams end with an error event, so that their connections can close
                server.should_exit = True
                await serving
                if lost.done() and not lost.cancelled():
                    raise Unavailable(lost.result())
            finally:
                if watching is not None:
                    watching.cancel()
                metrics.close()
        finally:
            await fleet.close()
            logger.info("ended")


async def _drain(lifecycle: Lifecycle, signals: "_Signals", timeout_s: float) -> None:
    """Refuse new requests and wait for those that run. Raises KeyboardInterrupt when a second signal came."""
    lifecycle.drain()
    logger.info("draining %d requests (at most %g s)", lifecycle.in_flight, timeout_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            if not await _unless(signals.second, lifecycle.idle()):
                raise KeyboardInterrupt
    if lifecycle.in_flight:
        logger.warning("%d requests did not finish in time and are ended", lifecycle.in_flight)


class _Signals:
    """SIGINT and SIGTERM count alike; SIGHUP reads the API keys again."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def listen(self, authenticator: Authenticator | None) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._ended)
        if authenticator is not None:
            loop.add_signal_handler(signal.SIGHUP, authenticator.reload)

    def _ended(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class _Server(uvicorn.Server):
    """Signals are ours: the fleet has to end first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _unless(stop: asyncio.Event, work: "Coroutine[Any, Any, Any] | asyncio.Future[Any]") -> bool:
    """Wait for `work`; False when `stop` came first, and then `work` is cancelled."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False
    finally:
        stopped.cancel()


def _bind(host: str, port: int, send_buffer_bytes: int | None) -> socket.socket:
    """A socket that holds the port but does not listen yet: until the engine is ready, clients are refused at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # ValueError: what can be no host name at all
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on host {host!r}: {reason}; give an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)  # connections inherit it
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} on {host} is in use; stop what uses it, or choose another with --port"
            ) from error
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --host and --port"
        ) from error
    return listener


def _allow_open_files(connections: int) -> None:
    """Raise this process's own limit on open files, as far as it may, to what its connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

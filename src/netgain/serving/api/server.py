"""The server process: binds its port, starts the fleet, serves until a signal, and leaves no process behind."""

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from netgain.errors import UsageError
from netgain.ledger.export import JsonlWriter
from netgain.serving.api.app import build_app
from netgain.serving.api.metrics import Metrics
from netgain.serving.api.served import ServedModel
from netgain.serving.api.traced import start_tracing
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.runtime.config import ServerConfig

_SHUTDOWN_S = 3
_KEEP_ALIVE_S = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_server(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets the URL once requests are taken.

    Raises UsageError (port in use, model or setting that cannot work) or Unavailable (model fetch, engine start).
    """
    listener = _bind(config.host, config.port, config.send_buffer_bytes)
    with contextlib.closing(listener):
        with _interruptible():  # it may fetch for minutes; nothing else runs in this process yet
            checkpoint = open_checkpoint(config.engine.model.source)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        if config.records is not None:
            JsonlWriter(Path(config.records)).close()  # said before the engine is waited for, not after
        tracing = start_tracing(config.tracing)
        fleet = Fleet(config.engine, config.fleet)
        try:
            if not await _unless(stop, fleet.start()):
                return
            served = ServedModel(checkpoint, fleet.info, config.api)
            metrics = Metrics(served, config.records, tracing)
            try:
                server = _Server(
                    uvicorn.Config(
                        build_app(config, fleet, served, metrics),
                        http=_Protocol,
                        ws="none",
                        lifespan="off",
                        log_config=None,
                        access_log=False,
                        server_header=False,
                        timeout_keep_alive=_KEEP_ALIVE_S,
                        timeout_graceful_shutdown=_SHUTDOWN_S,
                    )
                )
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                while not (server.started or serving.done()):
                    await asyncio.sleep(0.01)
                if server.started:
                    announce(_url(listener))
                await _unless(stop, asyncio.shield(serving))
                await fleet.close()  # open streams end with an error event, so that their connections can close
                server.should_exit = True
                await serving
            finally:
                metrics.close()
        finally:
            await fleet.close()


class _Server(uvicorn.Server):
    """Signals are ours: the fleet has to end first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """Waits for the socket after every write, however short, so that time in which a client does not read is seen."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Signals raise KeyboardInterrupt at once, in the middle of blocking work, which cleans up on its way out."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""The recording server's life: it listens, says how it goes, and ends with a whole recording however it is stopped."""

import asyncio
import errno
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.journal import Journal
from netgain.measuring.record.proxy import Proxy
from netgain.measuring.record.recorder import Recorder
from netgain.wording import count

_PROGRESS_S = 5.0
_SWITCH_S = 0.0005  # how long the thread that reads and hashes may keep the one that passes bytes on waiting


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded, where to, and how. `port` 0 takes a free one; `grace_s` is given to open requests at the end."""

    upstream: str
    output: Path
    host: str = "127.0.0.1"
    port: int = 8100
    ask_usage: bool = False
    with_text: bool = False
    rotate_bytes: int | None = None
    grace_s: float = 5.0


def record(settings: RecordSettings, say: Callable[[str], object]) -> None:
    """Record until SIGINT or SIGTERM. Raises UsageError when it cannot begin."""
    upstream = base_url(settings.upstream)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        asyncio.run(_record(settings, upstream, say))
    finally:
        sys.setswitchinterval(before_s)


async def _record(settings: RecordSettings, upstream: str, say: Callable[[str], object]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    listener = _bind(settings.host, settings.port)
    hasher = Hasher()
    try:
        journal = Journal(
            settings.output,
            "proxy",
            block_unit="bytes",
            block_size=hasher.block_bytes,
            upstream=upstream,
            with_text=settings.with_text,
            rotate_bytes=settings.rotate_bytes,
        )
    except UsageError:
        listener.close()
        raise
    recorder = Recorder(journal, hasher, with_text=settings.with_text)
    proxy = Proxy(upstream, recorder.take, ask_usage=settings.ask_usage)
    runner = proxy.runner(settings.grace_s)
    try:
        await runner.setup()
        await web.SockSite(runner, listener, backlog=1024).start()
        host, port = listener.getsockname()[:2]
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        say(f"recording {upstream} at http://{at}/v1 into {settings.output}")
        said: tuple[int, ...] = ()
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), _PROGRESS_S)
            except TimeoutError:
                now = (proxy.requests, proxy.failed, proxy.in_flight, recorder.lost)
                if now != said:
                    said = now
                    lost = f", {recorder.lost} not recorded" if recorder.lost else ""
                    say(f"{time.strftime('%H:%M:%S')} {now[0]} requests, {now[1]} failed, {now[2]} in flight{lost}")
        if proxy.in_flight:
            say(f"stopping: {count(proxy.in_flight, 'request')} still in flight, given {settings.grace_s:g} s")
    finally:
        await runner.cleanup()
        await asyncio.to_thread(recorder.close)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot listen on host {host!r}: {getattr(error, 'strerror', None) or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = "it is in use; stop what uses it" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise UsageError(f"cannot listen on {host}:{port}: {reason}, or choose another with --port") from error
    return listener

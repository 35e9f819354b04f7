"""A Valkey or Redis server as a medium. Its memory, and what it evicts, are the server's own (`maxmemory` and
`maxmemory-policy`): one that answers "out of memory" counts as full. See bounded.py for a capacity beside that."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar, cast

import msgspec

from netgain.errors import Unavailable, UsageError
from netgain.secrecy import without_userinfo
from netgain.serving.tiers.bounded import Listed
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Range, Still, Usage
from netgain.serving.tiers.object import HEAD_BYTES
from netgain.serving.tiers.server_limits import ServerLimits, limit_notices
from netgain.serving.tiers.staging import Staging
from netgain.wording import install_command

try:
    import redis.asyncio as client
    from redis import exceptions
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    from netgain.serving.tiers.bulk import receive
except ModuleNotFoundError as error:
    raise Unavailable(f"KV in Valkey or Redis needs a client: {install_command('valkey')}") from error

T = TypeVar("T")
_IDLE_S = 1  # after which a connection is asked whether it is alive, before it is used
_ANSWER_S = 0.25  # for that; far below what a tier gives a call, so that a fresh connection is in time
# what lies between and forgets idle connections seldom does so within a minute
_KEEPALIVE = MappingProxyType({socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3})
_PAGE = 1000  # keys that a server looks at for one answer


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`prefix` comes before every key. `ttl_s`: the server forgets an object so long after it was written (None: never).
    `capacity` is what is kept there at most by who asks (see bounded.py), for the notices. `connections`: no fewer than the
    tier has transfers and questions at once, or one kind waits for the other."""

    prefix: str = "netgain:kv:"
    ttl_s: float | None = 86_400.0
    connections: int = 8
    capacity: int | None = None


class _Pool(client.BlockingConnectionPool):
    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """One that died while idle may look alive: what dropped it (a NAT, a firewall, a host that lost power) told nobody."""
        if connection.is_connected:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await connection.check_health()  # type: ignore[no-untyped-call]  # at once if not idle
            except (TimeoutError, OSError, exceptions.RedisError):
                await connection.disconnect(nowait=True)
        await super().ensure_connection(connection)


class RemoteMedium(Still):
    """Connects on first use, and again by itself: a connection that the server or something between dropped while idle is
    replaced within the call that finds it dead, also where nothing said that it is."""

    outlives = True
    tells_use = True

    def __init__(self, url: str, options: RemoteOptions | None = None, staging: Staging | None = None) -> None:
        self._options = options or RemoteOptions()
        if not re.fullmatch(r"[\w:./-]*", self._options.prefix, re.ASCII):
            raise UsageError(f"{self._options.prefix!r} is no prefix of keys: use letters, digits and _ : . / -")
        self._prefix = self._options.prefix.encode()
        self._staging = staging or Staging()
        try:
            self._pool = _Pool.from_url(
                url,
                max_connections=self._options.connections,
                timeout=None,  # for a free connection; the tier bounds every wait
                retry=Retry(NoBackoff(), 1),
                retry_on_error=[exceptions.ConnectionError],
                socket_keepalive=True,
                socket_keepalive_options=_KEEPALIVE,
                health_check_interval=_IDLE_S,
            )
        except ValueError as error:
            why = "" if "@" in url else f": {error}"  # which may repeat a part of a password
            raise UsageError(
                f"{without_userinfo(url)!r} is no address of a server{why}. Write redis://HOST:PORT/0"
            ) from error
        self._server = client.Redis(connection_pool=self._pool)

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._received([(b"GET", name) for name in self._names(keys)])

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self.ranges([Range(key, 0, HEAD_BYTES) for key in keys])

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        commands = [(b"GETRANGE", self._prefix + key, start, end - 1) for key, start, end in wanted]
        return [data or None for data in await self._received(commands)]  # what is empty may as well not be there

    async def write(self, key: bytes, data: Data) -> None:
        ttl_ms = None if self._options.ttl_s is None else max(1, round(self._options.ttl_s * 1000))
        await self._call(lambda: self._server.set(self._prefix + key, bytes(data), px=ttl_ms))

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        pipeline = self._server.pipeline(transaction=False)
        for name in self._names(keys):
            pipeline.exists(name)
        return [bool(count) for count in await self._call(pipeline.execute)]

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        return 0

    async def remove(self, keys: Sequence[bytes]) -> int:
        if not keys:
            return 0
        return int(await self._call(lambda: self._server.unlink(*self._names(keys))))

    async def pages(self) -> AsyncIterator[list[bytes]]:
        length, seen, cursor = len(self._prefix), set[bytes](), 0  # a server that resizes its table names keys twice
        while True:
            scan = partial(self._server.scan, cursor, match=self._prefix + b"*", count=_PAGE)
            cursor, names = cast(tuple[int, list[bytes]], await self._call(scan))
            page = {name[length:] for name in names if len(name) == length + 32} - seen
            seen |= page
            yield list(page)
            if not cursor:
                return

    async def survey(self) -> AsyncIterator[list[Listed]]:
        async for page in self.pages():
            pipeline = self._server.pipeline(transaction=False)
            # sizes are asked without that counting as use (servers from 7.2 on), and after the times of use
            pipeline.execute_command("CLIENT", "NO-TOUCH", "ON")
            for name in self._names(page):
                pipeline.object("IDLETIME", name)
                pipeline.strlen(name)
            pipeline.execute_command("CLIENT", "NO-TOUCH", "OFF")
            told = (await self._call(partial(pipeline.execute, raise_on_error=False)))[1:-1]
            yield [
                Listed(
                    key, size, float(idle) if isinstance(idle, int) else None
                )  # a policy that counts uses tells no times
                for key, idle, size in zip(page, told[::2], told[1::2], strict=True)
                if isinstance(size, int) and size
            ]

    async def ping(self) -> None:
        await self._call(lambda: self._server.ping())

    async def notices(self) -> tuple[str, ...]:
        found = await self._call(lambda: self._server.info("memory"))
        limits = ServerLimits(
            maxmemory=int(found.get("maxmemory", 0)), policy=str(found.get("maxmemory_policy", "unknown"))
        )
        return tuple(limit_notices(limits, self._options.capacity, self._options.ttl_s))

    def on_eviction(self, given_up: GivenUp) -> bool:
        return False

    def usage(self) -> Usage:
        return Usage()

    async def close(self) -> None:
        await self._server.aclose(close_connection_pool=True)

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        return [self._prefix + key for key in keys]

    async def _received(self, commands: Sequence[tuple[bytes | int, ...]]) -> list[Data | None]:
        """What the server answers to commands that give values."""

        async def once() -> list[Data | None]:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                return list(await receive(connection, commands, self._staging))
            finally:
                await self._pool.release(connection)

        async def ask() -> list[Data | None]:
            try:
                return await once()
            except exceptions.ConnectionError:
                return await once()

        return await self._call(ask) if commands else []

    async def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except exceptions.OutOfMemoryError as error:
            raise Fault(FaultKind.FULL, str(error)) from error
        except exceptions.ReadOnlyError as error:
            raise Fault(FaultKind.READ_ONLY, str(error)) from error
        except exceptions.RedisError as error:
            raise Fault(FaultKind.UNREACHABLE, f"{type(error).__name__}: {error}") from error
        except OSError as error:
            raise Fault(FaultKind.UNREACHABLE, str(error)) from error

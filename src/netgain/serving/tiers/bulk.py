"""Answers of a Valkey or Redis server that are large, received where they stay. The client's own parser copies every byte some
five times, most of them into new memory, which takes several times as long as the server and the network do."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from redis import exceptions

from netgain.serving.tiers.staging import Staging

_LINE_BYTES = 4096  # received together with the line that says how long what follows is
_LONGEST = 512 << 20  # of a value, as servers have it


class _Answers(asyncio.BufferedProtocol):
    """In place of the protocol of a connection, until so many bulk strings have come (RESP2 and RESP3, `$LENGTH` and so many
    bytes, or one of the ways to say that there is none). `done` is set once, to the answers or to why they do not come."""

    def __init__(self, count: int, staging: Staging, usual: asyncio.BaseProtocol) -> None:
        self.done: asyncio.Future[list[memoryview | None]] = asyncio.get_running_loop().create_future()
        self._left, self._staging, self._usual = count, staging, usual
        self._found: list[memoryview | None] = []
        self._refusal: str | None = None
        self._line = bytearray(_LINE_BYTES)
        self._in_line = 0  # bytes that came and were not looked at
        self._body: memoryview | None = None
        self._in_body = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._in_body :]
        return memoryview(self._line)[self._in_line :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.done.done():
            return
        if self._body is None:
            self._in_line += nbytes
        else:
            self._in_body += nbytes
        try:
            while self._next():
                pass
        except exceptions.RedisError as error:
            self.done.set_exception(error)

    def _next(self) -> bool:
        """Take one step with what is there; whether there may be another."""
        if self._body is not None:
            if self._in_body < len(self._body):
                return False
            if bytes(self._body[-2:]) != b"\r\n":
                raise exceptions.InvalidResponse("a value is longer than the server said")
            self._take(self._body[:-2])
            self._body = None
        if not self._left:
            if self._in_line:
                raise exceptions.InvalidResponse("more came than was asked for")
            if self._refusal is not None:
                raise exceptions.ResponseError(self._refusal)
            self.done.set_result(self._found)
            return False
        end = self._line.find(b"\r\n", 0, self._in_line)
        if end < 0:
            if self._in_line == len(self._line):
                raise exceptions.InvalidResponse("a line has no end")
            return False
        line, rest = bytes(self._line[:end]), memoryview(self._line)[end + 2 : self._in_line]
        if line in (b"$-1", b"_") or line.startswith(b"-WRONGTYPE"):  # somebody else's, under our name
            self._take(None)
        elif line[:1] == b"-":  # the other answers come all the same
            self._refusal = line[1:].decode(errors="replace")
            self._take(None)
        elif line[:1] == b"$" and line[1:].isdigit() and int(line[1:]) <= _LONGEST:
            self._body = self._staging.room(int(line[1:]) + 2)
            self._in_body = min(len(rest), len(self._body))
            self._body[: self._in_body], rest = rest[: self._in_body], rest[self._in_body :]
        else:
            raise exceptions.InvalidResponse(f"no answer to GET begins with {line[:40]!r}")
        self._line[: len(rest)] = bytes(rest)
        self._in_line = len(rest)
        return True

    def _take(self, found: memoryview | None) -> None:
        self._found.append(found)
        self._left -= 1

    def eof_received(self) -> bool:
        self._lost("closed by the server")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc))
        self._usual.connection_lost(exc)

    def _lost(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(exceptions.ConnectionError(f"the connection was lost: {why}"))


async def receive(
    connection: Any, commands: Sequence[tuple[bytes | int, ...]], staging: Staging
) -> list[memoryview | None]:
    """What a connected connection of redis.asyncio, which nobody else uses meanwhile, answers to commands that give bulk strings.
    Raises RedisError or OSError; it, and being cancelled, leave the connection closed."""
    transport = cast(asyncio.Transport, connection._writer.transport)
    usual = transport.get_protocol()
    answers = _Answers(len(commands), staging, usual)
    transport.set_protocol(answers)
    try:
        transport.writelines(connection.pack_commands(commands))
        found = await answers.done
        transport.set_protocol(usual)
        return found
    except exceptions.ResponseError:  # the server's own words, all of them
        transport.set_protocol(usual)
        raise
    except BaseException:
        transport.abort()  # an answer may be on its way that nobody would expect
        await connection.disconnect(nowait=True)
        raise

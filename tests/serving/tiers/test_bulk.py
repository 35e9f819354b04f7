"""What a server sends, in whatever pieces it comes, is what is found; what is no answer closes the connection."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest
from redis import exceptions
from redis.asyncio import Connection

from netgain.serving.tiers.bulk import receive
from netgain.serving.tiers.staging import Staging
from tests.waiting import PATIENCE_S

GET = (b"GET", b"key")


def answer(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


class Scripted:
    """A server that sends these bytes, in these pieces, each time that values are asked for; nothing, once it has none. What a
    client says of itself is well."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while asked := await reader.read(1 << 16):
                if b"GET" not in asked:
                    writer.write(b"+OK\r\n" * asked.count(b"SETINFO"))
                    continue
                for piece in self._answers.pop(0) if self._answers else ():
                    if piece == b"":
                        writer.close()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)


async def connected(*answers: Sequence[bytes]) -> tuple[asyncio.Server, Connection]:
    server = await asyncio.start_server(Scripted(*answers).serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection(host="127.0.0.1", port=port, protocol=2)
    await connection.connect()
    return server, connection


@pytest.mark.parametrize("seed", range(8))
async def test_answers_come_whole_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, 1, 2, 4090, 4096, 5000, 300_000, rng.randrange(100_000)]
    values = [None if rng.random() < 0.2 else rng.randbytes(size) for size in rng.sample(sizes, len(sizes))]
    sent = b"".join(map(answer, values))
    cuts = sorted(rng.randrange(len(sent)) for _ in range(rng.choice([0, 3, 200])))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b]
    server, connection = await connected(pieces, pieces)
    staging = Staging(1 << 19)
    for _ in range(2):
        found = await receive(connection, [GET] * len(values), staging)
        assert [None if data is None else bytes(data) for data in found] == values
    del found
    await asyncio.sleep(0.01)  # the loop has let go of the last one, too
    assert staging.held == 0
    await connection.disconnect()
    server.close()


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"$5\r\nabc", b""], exceptions.ConnectionError),
        ([b""], exceptions.ConnectionError),
        ([b"$3\r\nabcdefg\r\n"], exceptions.InvalidResponse),
        ([b"$3\r\nabc\r\n$3\r\nabc\r\n"], exceptions.InvalidResponse),
        ([b"*2\r\n"], exceptions.InvalidResponse),
        ([b"$99999999999999\r\n"], exceptions.InvalidResponse),
        ([b"$-7\r\n"], exceptions.InvalidResponse),
        ([b"x" * 5000], exceptions.InvalidResponse),
    ],
)
async def test_what_is_no_answer_closes_the_connection(pieces: list[bytes], error: type[Exception]) -> None:
    server, connection = await connected(pieces)
    with pytest.raises(error):
        await asyncio.wait_for(receive(connection, [GET], Staging(1 << 16)), PATIENCE_S)
    assert not connection.is_connected
    server.close()


async def test_an_error_of_one_key_is_told_once_all_answers_came_and_the_connection_stays() -> None:
    server, connection = await connected(
        [b"$1\r\na\r\n-LOADING not yet\r\n$1\r\nc\r\n"], [b"-WRONGTYPE a list\r\n_\r\n$1\r\nd\r\n"]
    )
    with pytest.raises(exceptions.ResponseError, match="LOADING not yet"):
        await receive(connection, [GET] * 3, Staging())
    assert await receive(connection, [GET] * 3, Staging()) == [None, None, b"d"]
    await connection.disconnect()
    server.close()


async def test_one_that_is_given_up_leaves_no_answer_for_the_next() -> None:
    server, connection = await connected([b"$5\r\nab"])
    waiting = asyncio.create_task(receive(connection, [GET], Staging()))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not connection.is_connected
    server.close()

"""HTTP/1.1 answers out of bytes in any pieces: what they hold, where they end, and what is no answer at all."""

import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.client.wire import Response, WireError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + last


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def read(pieces: list[bytes]) -> tuple[Response, bytes]:
    response = Response()
    return response, b"".join(part for piece in pieces for part in response.feed(piece))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_a_chunked_body_is_the_same_however_it_is_cut(parts: list[bytes], at: list[int]) -> None:
    response, body = read(cut(HEAD + chunked(*parts), at))
    assert body == b"".join(parts)
    assert response.ended
    assert response.reusable


@given(st.binary(max_size=60), st.lists(st.integers(0, 10**6), max_size=8))
def test_a_body_of_known_length_is_the_same_however_it_is_cut(body: bytes, at: list[int]) -> None:
    response, seen = read(cut(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body), at))
    assert seen == body
    assert (response.ended, response.reusable) == (True, True)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_refused_by_name_or_read_and_nothing_else(data: bytes, behind_a_head: bool) -> None:
    response = Response()
    with suppress(WireError):
        response.feed((HEAD if behind_a_head else b"") + data)
        response.close()


def test_chunk_extensions_and_trailers_are_passed_over() -> None:
    data = HEAD + b"3;name=value\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    response, body = read([data])
    assert (body, response.ended, response.reusable) == (b"abc", True, True)


def test_interim_answers_come_before_the_real_one() -> None:
    response, body = read(
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + chunked(b"a")]
    )
    assert response.head is not None
    assert (response.head.status, body) == (200, b"a")


def test_without_a_length_the_body_ends_with_the_connection() -> None:
    response, body = read([b"HTTP/1.0 200 OK\r\n\r\nab", b"c"])
    assert (body, response.ended) == (b"abc", False)
    assert response.close() is None
    assert (response.ended, response.reusable) == (True, False)


@pytest.mark.parametrize(
    ("begun", "missing"),
    [
        (b"", "closed"),
        (b"HTTP/1.1 2", "within the head"),
        (HEAD, "in the middle of the body"),
        (HEAD + b"5\r\nab", "in the middle of the body"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "in the middle of the body"),
    ],
)
def test_what_is_missing_when_the_connection_closes_is_said(begun: bytes, missing: str) -> None:
    response = Response()
    if begun:
        response.feed(begun)
    assert missing in (response.close() or "")


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore than was asked for", False),
    ],
)
def test_a_connection_is_used_again_only_where_the_answer_allows_it(head: bytes, reusable: bool) -> None:
    response, _ = read([head])
    assert (response.ended, response.reusable) == (True, reusable)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        HEAD + b"-5\r\nabcde\r\n",
        HEAD + b"0x5\r\nabcde\r\n",
        HEAD + b"3\r\nabcde\r\n",
        HEAD + b"f" * 40 + b"\r\n",
        HEAD + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Response().feed(data)

"""Any chunking of the bytes gives the same events."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.client.sse import SSEParser, StreamError

STREAM = (
    'data: {"text": "héllo \U0001f600"}\n\n'
    ": a comment\n\n"
    "event: ping\nid: 7\nretry: 10\ndata: second\n\n"
    "data:no space\r\n\r\n"
    "data: two\ndata: lines\r\r"
    "data: [DONE]\n\n"
).encode()
EVENTS = ['{"text": "héllo \U0001f600"}'.encode(), b"second", b"no space", b"two\nlines", b"[DONE]"]


def parse(pieces: list[bytes]) -> list[bytes]:
    parser = SSEParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.close()


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert parse([STREAM[a:b] for a, b in itertools.pairwise(edges)]) == EVENTS


def test_byte_by_byte_splits_characters_and_line_ends() -> None:
    events = parse([bytes([byte]) for byte in STREAM])
    assert events == EVENTS
    assert json.loads(events[0])["text"] == "héllo \U0001f600"


def test_an_event_is_given_as_soon_as_its_blank_line_is_complete() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
    assert parser.feed(b"data: b\r\n\r") == []  # the blank line's LF is not there yet
    assert parser.feed(b"\n") == [b"b"]


def test_a_missing_last_blank_line_loses_nothing() -> None:
    assert parse([b"data: a\n\ndata: [DONE]"]) == [b"a", b"[DONE]"]
    assert parse([b"data: a\r"]) == [b"a"]
    assert parse([b": only a comment"]) == []


def test_byte_order_mark_and_empty_data() -> None:
    assert parse([b"\xef\xbb\xbfdata: a\n\ndata:\n\ndata\n\n"]) == [b"a", b"", b""]


def test_an_endless_event_is_refused() -> None:
    parser = SSEParser()
    for _ in range(32):
        parser.feed(b"x" * 2**20)
    with pytest.raises(StreamError, match="longer than"):
        parser.feed(b"x")

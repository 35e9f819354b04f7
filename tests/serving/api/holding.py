"""Holding an engine process still while a test looks at what the server makes of its requests, so that none is over before."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.waiting import PATIENCE_S


@contextlib.contextmanager
def held(engine_pid: int) -> Iterator[None]:
    """The engine process stands still in this block; the server must not take it for hung within that time."""
    engine = psutil.Process(engine_pid)
    engine.suspend()
    try:
        yield
    finally:
        engine.resume()


def in_flight(server: Any) -> int:
    """Requests that the server has given to its engine and that are not over."""
    return int(server.health()["replicas"][0]["in_flight"])


def begun(server: Any, **fields: Any) -> http.client.HTTPResponse:
    """An endless stream of which the first event has come."""
    at = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "l", "stream": True, **fields}))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    return response

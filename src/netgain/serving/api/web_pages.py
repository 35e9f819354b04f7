"""Requests that a web page has its visitor's browser send. Browsers say so, in headers that no page can leave out or set; other
clients send neither."""

from collections.abc import Iterable


def from_a_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page is behind a request with these headers (of ASGI, with lower-case names). A page of this very origin is one,
    too: by a name of its own that leads here, any page is."""
    told = dict(headers)
    return b"origin" in told or told.get(b"sec-fetch-site", b"none") != b"none"

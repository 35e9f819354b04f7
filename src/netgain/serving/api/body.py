"""Reading a request body: never more than allowed, and with the wait for the client's bytes measured."""

import asyncio
import codecs
import time

from starlette.requests import ClientDisconnect, Request

from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Timeline
from netgain.serving.api.errors import ApiError

_DIGITS = 18  # of a length that is worth reading


class Body:
    """The bytes, and since when this process has had them all."""

    def __init__(self, data: bytes, complete_s: float) -> None:
        self.data = data
        self.complete_s = complete_s


async def read_body(
    request: Request, limit_bytes: int, timeout_s: float, received_s: float, timeline: Timeline
) -> Body:
    """Read to the end. Waits for the client count as CLIENT_BLOCKED, the rest as TOKENISE (making the prompt ready).

    A byte order mark is passed over. Raises ApiError 415 for a compressed body, ApiError 413 over `limit_bytes`, ApiError
    408 after `timeout_s`, and ClientDisconnect.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            415,
            f"the body came with content-encoding {encoding[:40]!r}: send it as it is, in UTF-8",
            code="unsupported_encoding",
            headers={"accept-encoding": "identity"},
        )
    announced = request.headers.get("content-length", "").lstrip("0")
    if announced.isdecimal() and (len(announced) > _DIGITS or int(announced) > limit_bytes):
        raise _too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    at_s = received_s
    more = True
    while more:
        asked_s = time.monotonic()
        timeline.add(Stage.TOKENISE, at_s, asked_s)
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + timeout_s - (asked_s - received_s)):
                message = await request.receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"{size} bytes of the request body came in {timeout_s:g} s, the time that this server gives it",
                headers={"connection": "close"},
            ) from None
        at_s = time.monotonic()
        timeline.add(Stage.CLIENT_BLOCKED, asked_s, at_s)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        more = message.get("more_body", False)
    return Body(b"".join(parts).removeprefix(codecs.BOM_UTF8), at_s)


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, f"the request body is larger than {limit_bytes} bytes, the limit of this server")

"""The way out: an ASGI send whose waits are measured, so that a slow reader shows as CLIENT_BLOCKED and our work as RESPOND."""

import time
from collections.abc import Callable

from starlette.types import Message, Send

from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Timeline


class Sender:
    """Everything an HTTP request sends goes through one sender: the head by `send`, the body by `send_body`, or by `at_once`
    where that can be done without waiting: it takes the bytes, or says False. `timeline` holds the intervals that the
    request's choices share."""

    def __init__(
        self, send: Send, send_body: Send, at_once: Callable[[bytes], bool] | None, timeline: Timeline
    ) -> None:
        self.started = False
        self.free_s = time.monotonic()  # when the last send ended
        self._send = send
        self._send_body = send_body
        self._at_once = at_once
        self._timeline = timeline

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Queue the response's head; it leaves with the first body bytes or a flush."""
        self.started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._timed(self._send, {"type": "http.response.start", "status": status, "headers": encoded})

    async def body(self, data: bytes, since_s: float) -> None:
        """Send body bytes; what happened to them between `since_s` and now was this process's work."""
        begin_s = self.free_s if since_s < self.free_s else since_s
        start_s = time.monotonic()
        self._timeline.add(Stage.RESPOND, begin_s, start_s)
        await self._send_body({"type": "http.response.body", "body": data, "more_body": True})
        self.free_s = time.monotonic()
        self._timeline.add(Stage.CLIENT_BLOCKED, start_s, self.free_s)

    def body_at_once(self, data: bytes, since_s: float) -> bool:
        """The same where the socket takes bytes now; False, and nothing is sent, where it would have to be waited for."""
        if self._at_once is None or not self._at_once(data):
            return False
        self.worked(since_s)
        return True

    def worked(self, since_s: float) -> None:
        """This process has worked on the answer since `since_s`, and has waited for nobody."""
        begin_s = self.free_s if since_s < self.free_s else since_s
        self.free_s = time.monotonic()
        self._timeline.add(Stage.RESPOND, begin_s, self.free_s)

    async def flush(self) -> None:
        """Wait until the socket has accepted what was sent (the server waits for that at the start of every send)."""
        await self._timed(self._send_body, {"type": "http.response.body", "body": b"", "more_body": True})

    async def finish(self) -> None:
        """End the body; call `flush` before, to know when its last byte was accepted."""
        await self._send_body({"type": "http.response.body", "body": b"", "more_body": False})

    async def _timed(self, send: Send, message: Message) -> None:
        start_s = time.monotonic()
        await send(message)
        self.free_s = time.monotonic()
        self._timeline.add(Stage.CLIENT_BLOCKED, start_s, self.free_s)

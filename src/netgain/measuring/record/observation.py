"""What the proxy keeps of one exchange while it passes: bytes and stamps, so that nothing is computed on the way."""

import time
from collections.abc import Mapping

KEPT_REQUEST_BYTES = 32 << 20
KEPT_ANSWER_BYTES = 16 << 20


class Observation:
    """One exchange. All stamps are monotonic seconds. What is beyond the kept sizes is counted but not read."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self.arrived_unix_s = time.time()
        self.arrived_s = time.monotonic()
        self.method = method
        self.path = path
        self.headers = headers
        self.request: list[bytes] = []
        self.request_bytes = 0
        self.status: int | None = None
        self.answer_headers: Mapping[str, str] = {}
        self.head_s: float | None = None
        self.pieces: list[bytes] = []
        self.times_s: list[float] = []
        self.answer_bytes = 0
        self.error: str | None = None
        self.ended_s: float | None = None

    def sent(self, piece: bytes) -> None:
        """A piece of the request's body went up."""
        self.request_bytes += len(piece)
        if self.request_bytes <= KEPT_REQUEST_BYTES:
            self.request.append(piece)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer began."""
        self.head_s = time.monotonic()
        self.status = status
        self.answer_headers = headers

    def came(self, piece: bytes, now_s: float) -> None:
        """A piece of the answer's body came down."""
        self.times_s.append(now_s)
        self.answer_bytes += len(piece)
        if self.answer_bytes <= KEPT_ANSWER_BYTES:
            self.pieces.append(piece)

    def end(self, error: str | None = None) -> None:
        self.ended_s = time.monotonic()
        self.error = error

    @property
    def kept_bytes(self) -> int:
        return min(self.request_bytes, KEPT_REQUEST_BYTES) + min(self.answer_bytes, KEPT_ANSWER_BYTES)

"""Messages over a byte stream: each is a length and its msgpack. The decoder does no I/O; the channel feeds it from asyncio."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from netgain.errors import NetgainError

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")

Incoming = TypeVar("Incoming")


class WireError(NetgainError):
    """The peer sent bytes that are no frame (too long, cut off, or not one of the agreed messages)."""


def encode(message: msgspec.Struct, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame. Raises WireError when the message is longer than a frame may be."""
    payload = msgspec.msgpack.encode(message)
    if len(payload) > max_frame_bytes:
        raise WireError(
            f"a {type(message).__name__} of {len(payload)} bytes exceeds the frame limit of {max_frame_bytes}"
        )
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder(Generic[Incoming]):
    """Bytes in, messages out; `kind` is the union of messages that may come."""

    def __init__(self, kind: Any, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(kind)
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Incoming]:
        """The messages that `data` completes. Raises WireError; the stream is useless after that."""
        self._buffer += data
        messages: list[Incoming] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > self._max_frame_bytes:
                raise WireError(f"a frame of {length} bytes was announced, the limit is {self._max_frame_bytes}")
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(bytes(self._buffer[at + _LENGTH.size : end])))
            except msgspec.MsgspecError as error:
                raise WireError(f"a frame of {length} bytes is no message of this protocol: {error}") from error
            at = end
        del self._buffer[:at]
        return messages

    def finish(self) -> None:
        """The stream ended. Raises WireError when it ended inside a frame."""
        if self._buffer:
            raise WireError(f"the stream ended inside a frame, after {len(self._buffer)} of its bytes")


class Channel(asyncio.Protocol, Generic[Incoming]):
    """One end of a connection. `received` gets every message, in order, on the event loop; `closed` is called once, with
    None after a clean end and the cause otherwise."""

    def __init__(
        self,
        kind: Any,
        received: Callable[[Incoming], None],
        closed: Callable[[Exception | None], None],
    ) -> None:
        self._decoder: FrameDecoder[Incoming] = FrameDecoder(kind)
        self._received = received
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._cause: Exception | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message; on a closed connection it is dropped (the owner hears of the end through `closed`)."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    async def drain(self, timeout_s: float) -> None:
        """Wait until what was sent has left this process, at most `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._transport is not None and self._transport.get_write_buffer_size():
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.005)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # no subclass of it with every event loop

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except WireError as error:
            self._cause = error
            self.close()
            return
        for message in messages:
            self._received(message)

    def eof_received(self) -> None:
        try:
            self._decoder.finish()
        except WireError as error:
            self._cause = error

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed(self._cause or exc)

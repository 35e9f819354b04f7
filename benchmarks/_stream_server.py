"""A scripted server in a process of its own: streams chat chunks at a steady pace, each holding the time of its writing."""

import asyncio
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"scripted","object":"model","owned_by":"nobody"}]}'
DONE = b"data: [DONE]\n\n"


class Stream(asyncio.Protocol):
    """One connection; every POST on it is answered by `tokens` chunks, `gap_s` apart, the first after `gap_s`."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self._tokens = tokens
        self._gap_s = gap_s
        self._held = b""
        self._due: asyncio.TimerHandle | None = None
        self._sent = 0
        self._began_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        if self._due is not None:
            self._due.cancel()

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if len(rest) < length:
            return
        self._held = rest[length:]
        if head.startswith(b"GET"):
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(MODELS)
                + MODELS
            )
            return
        self._transport.write(HEAD)
        self._sent = 0
        self._began_s = self._loop.time()
        self._due = self._loop.call_at(self._began_s + self._gap_s, self._next)

    def _next(self) -> None:
        if self._sent == self._tokens:
            self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))
            return
        self._sent += 1
        self._due = self._loop.call_at(self._began_s + (self._sent + 1) * self._gap_s, self._next)
        event = (
            b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1764460800,"model":"scripted",'
            b'"choices":[{"index":0,"delta":{"content":" %.6f"},"logprobs":null,"finish_reason":%s}],'
            b'"usage":{"prompt_tokens":40,"total_tokens":%d,"completion_tokens":%d}}\n\n'
            % (
                time.monotonic(),
                b'"stop"' if self._sent == self._tokens else b"null",
                40 + self._sent,
                self._sent,
            )
        )
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))


async def main(tokens: int, gap_s: float) -> None:
    """Print the port, and serve until standard input is closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(tokens, gap_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))

"""Servers of a fixed pace over a real socket, in a process of their own: what a comparison must find, and what it must not.

Run as a script: prints its URL, then serves until it is ended. The pace is kept by absolute times, so that a busy machine delays
a token but not those after it.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


class Paced:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.tokens = 0
        self.began_s = time.time()
        self.requests = self.ended = 0
        self.decode_s = 0.0
        self.hits = 0
        self.known: set[str] = set()

    @web.middleware
    async def checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        refused = bool(self.asked.key) and request.headers.get("Authorization") != f"Bearer {self.asked.key}"
        if self.asked.log is not None:
            with self.asked.log.open("a") as log:
                log.write(f"{'refused' if refused else 'let in'} {request.path}\n")
        if refused:
            raise web.HTTPUnauthorized
        return await handler(request)

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": self.asked.model, "owned_by": self.asked.owner, "max_model_len": 4096}
        if self.asked.owner == "netgain":
            card["netgain"] = json.loads(self.asked.card)
        return web.json_response({"data": [card]})

    async def metrics(self, request: web.Request) -> web.Response:
        counts = {
            "vllm:generation_tokens_total": self.tokens * self.asked.counts,
            "vllm:prompt_tokens_total": self.requests * 9,
            "vllm:prefix_cache_hits_total": self.hits,
        }
        if self.asked.owner == "netgain":
            counts = {"netgain_output_tokens_total": self.tokens * self.asked.counts, "netgain_cached_tokens_total": 0}
        handed = f'{{kind="draft_verify",replica="0"}} {self.requests * self.asked.handoffs}'
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.began_s}"]
        lines += [line for name, value in counts.items() for line in (f"# TYPE {name} counter", f"{name} {value}")]
        if self.asked.handoffs and self.requests:  # a kind is told once it has happened
            for name in ("handoffs", "handoff_wasted_tokens"):
                lines += [f"# TYPE netgain_{name}_total counter", f"netgain_{name}_total{handed}"]
        if self.asked.owner == "vllm":
            name = "vllm:request_decode_time_seconds"
            lines += [f"# TYPE {name} histogram", f'{name}_bucket{{le="+Inf"}} {self.ended}']
            lines += [f"{name}_sum {self.decode_s}", f"{name}_count {self.ended}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body.get("prompt") or " ".join(one["content"] for one in body.get("messages", []))
        return web.json_response({"tokens": [zlib.crc32(word.encode()) % 50_000 for word in text.split()]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests += 1
        if self.requests == self.asked.restarts_at:
            self.tokens, self.began_s = 0, self.began_s + 100.0
        if "cache_salt" in body and not self.asked.salts:
            return web.json_response({"error": {"message": "cache_salt is not known"}}, status=400)
        prompt = json.dumps([body.get("messages", body.get("prompt")), body.get("cache_salt")])
        self.hits += 9 * (bool(self.asked.remembers) and prompt in self.known)
        self.known.add(prompt)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        due_s = asyncio.get_running_loop().time() + self.asked.first_s
        count = min(body["max_tokens"], self.asked.most)
        kind = "chat" if "messages" in body else "text"
        for place in range(count):
            crowd = self.requests - self.ended - 1
            due_s += (self.asked.token_s + self.asked.crowd_s * crowd) * (place > 0)
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            text = f"{self.asked.says}{place} "
            part = {"delta": {"content": text}} if kind == "chat" else {"text": text}
            finish = "length" if place == count - 1 else None
            usage = {"prompt_tokens": 9, "completion_tokens": place + 1, "total_tokens": 10 + place}
            event = {"choices": [{"index": 0, **part, "finish_reason": finish}], "usage": usage}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.tokens += 1
        self.ended += 1
        self.decode_s += (count - 1) * self.asked.token_s
        await response.write(b"data: [DONE]\n\n")
        return response


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="m")
    parser.add_argument("--owner", default="vllm")
    parser.add_argument("--card", default="{}")
    parser.add_argument("--first-s", type=float, default=0.004)
    parser.add_argument("--token-s", type=float, default=0.004)
    parser.add_argument(
        "--crowd-s", type=float, default=0.0, help="More for each token, by each other request in flight."
    )
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--says", default="word")
    parser.add_argument("--salts", type=int, default=1)
    parser.add_argument("--remembers", type=int, default=0)
    parser.add_argument("--counts", type=float, default=1.0)
    parser.add_argument("--handoffs", type=int, default=0)
    parser.add_argument("--restarts-at", type=int, default=0)
    parser.add_argument("--key", default="")
    parser.add_argument("--key-file", type=Path, help="The key as no process list shows it.")
    parser.add_argument("--log", type=Path, help="Takes a line for each request: whether it was let in, and its path.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--paces", type=json.loads, default={}, help="by method of speculation; null: it does not start"
    )
    parser.add_argument("--speculative-config", type=json.loads, default={})
    asked, _ = parser.parse_known_args()  # as an arm it is given flags of the engine that it plays
    asked.key = asked.key if asked.key_file is None else asked.key_file.read_text()
    asked.token_s = asked.paces.get(asked.speculative_config.get("method"), asked.token_s)
    if asked.token_s is None:
        sys.exit("no such method")
    paced = Paced(asked)
    app = web.Application(middlewares=[paced.checked])
    app.router.add_get("/v1/models", paced.models)
    app.router.add_get("/metrics", paced.metrics)
    app.router.add_get("/health", paced.models)
    app.router.add_post("/tokenize", paced.tokenize)
    app.router.add_post("/v1/completions", paced.answer)
    app.router.add_post("/v1/chat/completions", paced.answer)

    async def serve() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", asked.port).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


def options_of(options: Mapping[str, object]) -> list[str]:
    """As the words of a command line."""
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@contextmanager
def paced_server(**options: object) -> Iterator[str]:
    """The URL of a server with these options, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__)), *options_of(options)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


if __name__ == "__main__":
    main()

"""A small real HTTP server that keeps a prefix cache and speaks of it as vLLM, SGLang or llama.cpp do, faults included. Run as a
script it stands in for llama-server, and says with what it was started."""

import argparse
import asyncio
import json
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

NAMES = {
    "vllm": ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:cached_tokens_total"),
    "llama.cpp": (
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_tokens_cached_total",
    ),
}
BLOCK = 16  # tokens; whole blocks are found again


@dataclass
class EngineDouble:
    """`resets`: "works"; "refuses" (and says so); "pretends" (answers 200 and does nothing, and says nothing more);
    "absent" (404); "breaks" (works, and no request is answered any more).
    `key`: without which every request is refused. `port`: 0 for a free one. `keeps` False: no prefix cache. `salted` False: salts
    are ignored. `counts` False: its counter stays 0, and usage says nothing. `prefill_s`: seconds for a prompt not found.
    `warms_up_s`: more for the first request of all. `tells_usage` False: answers do not count tokens.
    `remembers`: prompts that a new one puts out of the slots go to a second cache, which no reset reaches."""

    engine: str = "vllm"
    resets: str = "works"
    keeps: bool = True
    salted: bool = True
    counts: bool = True
    prefill_s: float = 0.0
    warms_up_s: float = 0.0
    tells_usage: bool = True
    remembers: bool = False
    key: str | None = None
    port: int = 0
    broken: bool = False
    kept: set[tuple[str, str]] = field(default_factory=set)
    second: set[tuple[str, str]] = field(default_factory=set)
    totals: list[int] = field(default_factory=lambda: [0, 0, 0])
    url: str = ""
    runner: web.AppRunner | None = None

    async def start(self) -> "EngineDouble":
        app = web.Application(middlewares=[self._checked])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/reset_prefix_cache" if self.engine == "vllm" else "/flush_cache", self._reset)
        if self.engine == "llama.cpp":
            app.router.add_get("/props", self._props)
            app.router.add_get("/slots", self._slots)
            app.router.add_post("/slots/{slot}", self._reset)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != self.key:
            raise web.HTTPUnauthorized
        return await handler(request)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": self.engine}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = []
        for name, total in zip(NAMES[self.engine], self.totals, strict=True):
            lines += [f"# TYPE {name} counter", f"{name} {total}"]
        return web.Response(text="\n".join(lines) + "\n")

    async def _props(self, request: web.Request) -> web.Response:
        return web.json_response({"n_ctx": 4096})

    async def _slots(self, request: web.Request) -> web.Response:
        return web.json_response([{"id": 0}, {"id": 1}])

    async def _reset(self, request: web.Request) -> web.Response:
        if self.resets == "absent":
            raise web.HTTPNotFound
        self.broken = self.resets == "breaks"
        if self.resets in ("works", "breaks"):
            self.kept.clear()
        if self.engine == "sglang":
            return web.Response(text="Cache flushed.", status=400 if self.resets == "refuses" else 200)
        if self.engine == "llama.cpp":
            body = {"error": {"message": "This server does not support slots action."}}
            return web.json_response(body, status=501) if self.resets == "refuses" else web.json_response({})
        return web.Response() if self.resets == "pretends" else web.json_response({"success": self.resets == "works"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if self.broken:
            raise web.HTTPInternalServerError
        body = await request.json()
        key = (str(body.get("cache_salt")) if self.salted else "", body["prompt"])
        tokens = len(body["prompt"].split())
        cached = tokens // BLOCK * BLOCK if self.keeps and key in self.kept | self.second else 0
        if self.remembers and key not in self.kept:
            self.second |= self.kept
        self.kept.add(key)
        warms_up_s, self.warms_up_s = self.warms_up_s, 0.0
        await asyncio.sleep(warms_up_s + (0.0 if cached else self.prefill_s))
        if self.counts:
            self.totals[2] += cached
        self.totals[0] += tokens
        self.totals[1] += 1
        usage: dict[str, object] = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        choice = {"index": 0, "text": "a", "finish_reason": "length"}
        await response.write(
            b"data: "
            + json.dumps({"choices": [choice], **({"usage": usage} if self.tells_usage else {})}).encode()
            + b"\n\n"
        )
        await response.write(b"data: [DONE]\n\n")
        return response


async def _stand_in(port: int, key: str | None) -> None:
    print(f"started with {shlex.join(sys.argv[1:])}", flush=True)
    await EngineDouble(engine="llama.cpp", salted=False, key=key, port=port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-key")
    asked, _ = parser.parse_known_args()
    asyncio.run(_stand_in(asked.port, asked.api_key))

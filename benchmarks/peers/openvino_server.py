"""The least OpenAI-compatible server around OpenVINO GenAI's continuous batching, run with its own Python.

python openvino_server.py MODEL_FOLDER PORT KV_GIB PRECISION KV_PRECISION. Takes /v1/completions with a text prompt, max_tokens,
greedy, always streaming with the running usage in every chunk, as netgain's client asks for it; nothing else. The step loop runs
in a thread, its lock is never held while a client is written to.
"""

import asyncio
import json
import sys
import threading
from typing import Any

import openvino_genai as genai
from aiohttp import web

Tokens = asyncio.Queue[list[int] | None]  # of one request, as they come; None at its end


def main() -> None:
    folder, port, kv_gib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    precision, kv_precision = sys.argv[4:6]
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = kv_gib
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 64
    scheduler.enable_prefix_caching = False
    hints = {"KV_CACHE_PRECISION": kv_precision}  # without it models that were exported quantised keep KV in 8 bits
    if precision != "auto":
        hints["INFERENCE_PRECISION_HINT"] = precision
    pipe = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", hints)
    app = web.Application()
    app["engine"] = Engine(pipe)
    app.router.add_get("/health", healthy)
    app.router.add_post("/v1/completions", completions)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


async def healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


class Engine:
    """Adds requests and steps the pipeline in one thread; tokens go to each request's queue."""

    def __init__(self, pipe: genai.ContinuousBatchingPipeline) -> None:
        self.tokenizer = pipe.get_tokenizer()
        self._pipe = pipe
        self._wake = threading.Condition()
        self._incoming: list[tuple[str, genai.GenerationConfig, asyncio.AbstractEventLoop, Tokens]] = []
        self._ids = 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: str, max_tokens: int, loop: asyncio.AbstractEventLoop) -> Tokens:
        queue: Tokens = asyncio.Queue()
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        with self._wake:
            self._incoming.append((prompt, config, loop, queue))
            self._wake.notify()
        return queue

    def _run(self) -> None:
        running: list[tuple[Any, asyncio.AbstractEventLoop, Tokens]] = []
        while True:
            with self._wake:
                while not self._incoming and not running:
                    self._wake.wait()
                incoming, self._incoming = self._incoming, []
            for prompt, config, loop, queue in incoming:
                self._ids += 1
                handle = self._pipe.add_request(self._ids, prompt, config)
                running.append((handle, loop, queue))
            self._pipe.step()
            still = []
            for handle, loop, queue in running:
                while handle.can_read():
                    for output in handle.read().values():
                        loop.call_soon_threadsafe(queue.put_nowait, list(output.generated_ids))
                if handle.get_status() == genai.GenerationStatus.RUNNING:
                    still.append((handle, loop, queue))
                else:
                    loop.call_soon_threadsafe(queue.put_nowait, None)
            running = still


async def completions(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    engine: Engine = request.app["engine"]
    prompt_tokens = engine.tokenizer.encode(body["prompt"]).input_ids.shape[1]
    queue = engine.submit(body["prompt"], body["max_tokens"], asyncio.get_running_loop())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count, finished = 0, False
    while not finished:
        tokens = await queue.get()
        finished = tokens is None
        count += len(tokens or ())
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": prompt_tokens + count}
        text = engine.tokenizer.decode(tokens) if tokens else ""
        choice = {"index": 0, "text": text, "finish_reason": "length" if finished else None}
        chunk = {"id": "x", "object": "text_completion", "model": body["model"], "choices": [choice], "usage": usage}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


if __name__ == "__main__":
    main()

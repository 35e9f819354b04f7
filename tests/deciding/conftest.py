"""A small generator of synthetic experiments: records as server and client would write them, with planted effects."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
from aiohttp import web

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord


def build_record(
    item: str = "p0",
    *,
    start_s: float = 100.0,
    prefill_s: float = 0.1,
    token_s: float = 0.01,
    tokens: int = 17,
    per_chunk: int = 1,
    gap_s: float = 0.001,
    verify: bool = False,
    draft_s: float = 0.0,
    output: tuple[int, ...] | None = None,
    cached: int = 0,
    error: str | None = None,
) -> ClientRecord:
    """One request: `gap_s` of network, then prefill to the first token, then a chunk per `per_chunk` tokens."""
    if error is not None:
        return ClientRecord(
            item_id=item, category="c", scheduled_s=start_s, sent_s=start_s, finished_s=start_s + 0.01, error=error
        )
    received, first = start_s + gap_s / 2, start_s + gap_s / 2 + prefill_s
    later = tokens - 1
    chunks = [min(per_chunk, later - at) for at in range(0, later, per_chunk)]
    times, at = [first], first
    for count in chunks:
        at += token_s * count
        times.append(at)
    at += draft_s
    finished = at + gap_s / 2
    step = Stage.VERIFY if verify else Stage.DECODE
    stages = {Stage.PREFILL: prefill_s, step: token_s * later}
    if draft_s:
        stages[Stage.DRAFT] = draft_s
    drafts = DraftCounts()
    if verify:
        for count in chunks:
            drafts.add(per_chunk, count - 1)
    return ClientRecord(
        item_id=item,
        category="c",
        scheduled_s=start_s,
        sent_s=start_s,
        finished_s=finished,
        first_token_s=first,
        first_text_s=first,
        chunk_times_s=tuple(times),
        chunk_tokens=(1, *chunks),
        tokens_source="usage",
        prompt_tokens=40,
        cached_tokens=cached,
        output_tokens=tokens,
        finish_reason="length",
        status=200,
        text="x" * tokens,
        server=RequestRecord(
            request_id=f"r-{item}-{start_s}",
            choice=0,
            model="m",
            received_s=received,
            first_token_s=first,
            finished_s=at,
            finish_reason="length",
            prompt_tokens=40,
            cached_tokens=cached,
            output_tokens=tokens,
            preemptions=0,
            stages=stages,
            ttft_stages={Stage.PREFILL: prefill_s},
            drafts=drafts,
            prompt_ids=tuple(range(40)),
            output_ids=output if output is not None else tuple(range(1000, 1000 + tokens)),
        ),
    )


def build_trial(
    *,
    groups: int = 6,
    prompts: int = 4,
    speedup: float = 1.0,
    spread: float = 0.0,
    block_noise: float = 0.005,
    request_noise: float = 0.005,
    starts: int = 1,
    start_noise: float = 0.0,
    seed: int = 0,
    candidate_fails: bool = False,
    baseline_fails: bool = False,
    outputs: Callable[[str, int], tuple[int, ...] | None] = lambda arm, prompt: None,
) -> list[Observation]:
    """A B B A per group of prompts. The candidate's decode is `speedup` times faster (log-spread by `spread` over
    prompts); blocks, requests and each arm's starts carry log-normal noise. Groups are spread evenly over the starts."""
    generator = np.random.default_rng(seed)
    paces = {
        arm: generator.normal(0.0, start_noise, starts) if start_noise else np.zeros(starts)
        for arm in (BASELINE, CANDIDATE)
    }
    found: list[Observation] = []
    clock = 100.0
    for group in range(groups):
        lengths = generator.integers(12, 40, size=prompts)
        gains = np.log(speedup) + generator.normal(0.0, spread, size=prompts)
        for block, arm in enumerate((BASELINE, CANDIDATE, CANDIDATE, BASELINE)):
            fails = candidate_fails if arm == CANDIDATE else baseline_fails
            start = group * starts // groups
            pace = generator.normal(0.0, block_noise) + paces[arm][start]
            for prompt in range(prompts):
                noise = float(np.exp(pace + generator.normal(0.0, request_noise)))
                faster = float(np.exp(gains[prompt])) if arm == CANDIDATE else 1.0
                record = build_record(
                    f"g{group}p{prompt}",
                    start_s=clock,
                    prefill_s=0.1 * noise / faster,
                    token_s=0.01 * noise / faster,
                    gap_s=0.001 * noise / faster,
                    tokens=int(lengths[prompt]),
                    output=outputs(arm, prompt),
                    error="connection refused" if fails else None,
                )
                clock = record.finished_s
                found.append(Observation(arm=arm, start=start, group=group, block=4 * group + block, record=record))
    return found


@pytest.fixture(scope="session")
def make_record() -> Callable[..., ClientRecord]:
    return build_record


@pytest.fixture(scope="session")
def make_trial() -> Callable[..., list[Observation]]:
    return build_trial


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    """A server that runs so many requests together, whose tokens come 2 ms apart; starts it and returns its URL."""
    runners: list[web.AppRunner] = []

    async def start(slots: int) -> str:
        room = asyncio.Semaphore(slots)

        async def complete(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async with room:
                for n in range(body["max_tokens"]):
                    await asyncio.sleep(0.002)
                    usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": n + 1}
                    event = {"choices": [{"index": 0, "text": "a", "finish_reason": None}], "usage": usage}
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await response.write(b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}\n\n')
            await response.write(b"data: [DONE]\n\n")
            return response

        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()

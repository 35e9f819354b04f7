"""Tokens per step by an engine's own counters: over starts, and unknown where one of them is."""

from aiohttp import web

from netgain.deciding.decide.counted import DraftLog
from netgain.deciding.experiment.arms.attached import AttachedServer


class Counting:
    """Serves whatever counters it is told."""

    def __init__(self):
        self.values = (0, 0)
        self.prefix = "vllm:"

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.arm = AttachedServer("candidate", f"http://127.0.0.1:{self.runner.addresses[0][1]}")
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def metrics(self, request):
        names = (f"{self.prefix}generation_tokens_total", f"{self.prefix}spec_decode_num_accepted_tokens_total")
        lines = [f"# TYPE {name} counter\n{name} {value}\n" for name, value in zip(names, self.values, strict=True)]
        return web.Response(text="".join(lines))


async def test_counters_of_several_starts_add_up(make_record):
    log = DraftLog()
    async with Counting() as server:
        for _ in range(2):
            server.values = (0, 0)
            await log.begin(server.arm)
            server.values = (21, 10)
            await log.end(server.arm)
    # two requests: 40 tokens after the first ones, of which 20 were accepted drafts, so 20 steps
    assert log.committed_per_step([make_record("a"), make_record("b")]) == 2.0


async def test_nothing_drafted_or_nothing_told_is_unknown(make_record):
    async with Counting() as server:
        log = DraftLog()
        await log.begin(server.arm)
        server.values = (21, 0)
        await log.end(server.arm)
        assert log.committed_per_step([make_record()]) is None
        server.prefix = "other:"
        await log.begin(server.arm)
        await log.end(server.arm)
        server.prefix, server.values = "vllm:", (100, 50)
        await log.begin(server.arm)
        server.values = (200, 100)
        await log.end(server.arm)
        assert log.committed_per_step([make_record()]) is None

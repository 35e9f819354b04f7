"""What deciding knows of each engine: what reaches hooks that start it, and the version that it tells."""

from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from netgain.deciding.decide.engines import engine_version, launch
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.hooks import hooks_from
from tests.deciding.arms.engine_double import EngineDouble

SAMPLE = Path(__file__).parents[1] / "measuring/observe/samples/netgain-0.1.0-after.txt"


async def test_what_netgain_is_set_to_reaches_the_hooks(tmp_path):
    seen = tmp_path / "seen"
    hooks = hooks_from({"start": f'echo "$NETGAIN_FLAGS" > {seen}', "stop": "true", "url": "http://127.0.0.1:9"}, "h")
    settings = Settings(output=tmp_path, hooks=hooks, serve_flags=("--set", "engine.threads=1"))
    arm = launch(settings, "candidate", ("--speculation", "ngram"))
    await arm.start()
    await arm.stop()
    assert seen.read_text().split() == ["--set", "engine.threads=1", "--speculation", "ngram"]


async def test_hooks_that_name_no_engine_are_reset_as_the_engine_asked_for(tmp_path):
    double = await EngineDouble(engine="vllm").start()
    hooks = hooks_from({"start": "true", "stop": "true", "url": double.url}, "h")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(double.stop)
        arm = launch(Settings(output=tmp_path, engine="vllm", model="m", hooks=hooks), "candidate", ())
        await arm.start()
        stack.push_async_callback(arm.stop)
        assert await arm.reset() == "prefix cache reset by /reset_prefix_cache"


async def test_netgain_tells_its_version_in_its_metrics():
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=SAMPLE.read_text())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    assert await engine_version("netgain", url, {}) == "0.1.0"
    await runner.cleanup()
    assert await engine_version("netgain", url, {}) is None

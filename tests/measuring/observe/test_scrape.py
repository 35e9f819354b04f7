"""Scraping a server over a socket, from the beginning of a window to its end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from netgain.measuring.observe.scrape import Watch


@asynccontextmanager
async def serving(answer: Callable[[int], web.Response]) -> AsyncIterator[str]:
    """A static web server; `answer` gets the number of the scrape."""
    count = 0

    async def handle(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        return answer(count)

    app = web.Application()
    app.router.add_get("/metrics", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


def tokens(count: int) -> web.Response:
    name = "vllm:generation_tokens_total"
    return web.Response(text=f"# TYPE {name} counter\n{name} {100 * count}\n")


async def test_the_window_is_between_its_first_and_its_last_scrape() -> None:
    async with serving(tokens) as url:
        watch = Watch(url)
        await watch.begin()
        await asyncio.sleep(0.05)
        seen = await watch.end()
    assert seen.absent is None
    assert seen.engine == "vllm"
    assert seen.figures["output_tokens"].gained == 100
    assert seen.window is not None
    assert seen.window.ended_s - seen.window.began_s >= 0.05


async def test_nothing_scraped_is_said_and_not_zero(free_port: int) -> None:
    watch = Watch(f"http://127.0.0.1:{free_port}/metrics")
    await watch.begin()
    seen = await watch.end()
    assert seen.window is None
    assert seen.figures == {}
    assert seen.absent is not None
    assert "could not be read" in seen.absent


async def test_other_answers_than_metrics_are_said() -> None:
    for answer, said in (
        (web.Response(status=404, text="no"), "status 404"),
        (web.Response(text="<html>\n"), "not with Prometheus metrics"),
    ):
        async with serving(lambda _, answer=answer: web.Response(status=answer.status, text=answer.text)) as url:  # type: ignore[misc]
            watch = Watch(url)
            await watch.begin()
            seen = await watch.end()
        assert seen.absent is not None
        assert said in seen.absent


async def test_a_server_that_is_gone_at_the_end_leaves_no_window() -> None:
    async with serving(lambda count: tokens(count) if count == 1 else web.Response(status=503)) as url:
        watch = Watch(url)
        await watch.begin()
        seen = await watch.end()
    assert seen.absent is not None
    assert "at the window's end" in seen.absent


async def test_a_page_of_many_pieces_is_read_to_its_end() -> None:
    """A page cut short looks like counters that are gone, and so like a restart."""
    filler = "".join(f"# TYPE other_{n} gauge\nother_{n} {n}\n" for n in range(20_000))

    def large(count: int) -> web.Response:
        name = "vllm:generation_tokens_total"
        return web.Response(text=f"{filler}# TYPE {name} counter\n{name} {100 * count}\n")

    async with serving(large) as url:
        watch = Watch(url)
        await watch.begin()
        seen = await watch.end()
    assert seen.window is not None
    assert seen.window.problems == ()
    assert seen.window.restarts == ()
    assert seen.figures["output_tokens"].gained == 100

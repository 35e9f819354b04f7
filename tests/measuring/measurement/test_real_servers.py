"""`netgain measure` on llama.cpp's own server. Needs the peers that `python -m benchmarks.peers --install` installs."""

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from benchmarks.peers import install
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.measure import measure
from netgain.measuring.workload.slo import parse_slo
from tests.measuring.measurement.test_measure import Told
from tests.measuring.timing import LOOSE

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


@asynccontextmanager
async def llama_cpp(port: int) -> AsyncIterator[str]:
    binary, model = install.folder() / "llama.cpp/build/bin/llama-server", install.llama_file("Q4_1")
    if not binary.is_file() or not model.is_file():
        pytest.skip("llama.cpp is not installed")
    flags = ("-t", "1", "-tb", "1", "-np", "4", "-c", "8192", "--metrics", "--alias", "m", "--port", str(port))
    server = await asyncio.create_subprocess_exec(binary, "-m", model, *flags, stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(300):
                await asyncio.sleep(0.2)
                try:
                    async with session.get(f"http://127.0.0.1:{port}/health") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    continue
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        await server.wait()


async def test_the_client_and_llama_cpp_count_the_same(free_port: int, tmp_path: Path) -> None:
    async with llama_cpp(free_port) as url:
        ask = Ask(url=url, requests=6, max_tokens=8, slo=parse_slo("ttft=60s"), client=LOOSE)
        found = await measure(ask, tmp_path / "out", Told())
    server = found.server
    assert (server.engine, server.max_running, server.max_model_len, server.kv_tokens) == ("llama.cpp", 4, 2048, 8192)
    assert server.version is not None
    assert (found.summary.succeeded, found.summary.output_tokens) == (6, 48)
    assert found.server_side is not None
    figures = found.server_side.figures
    assert figures["output_tokens"].gained == 48
    prefilled, cached = figures["prefilled_tokens"].gained, figures["cached_tokens"].gained
    assert prefilled is not None
    assert cached is not None
    assert prefilled + cached == found.summary.prompt_tokens
    assert found.restarts is None, "it tells nothing by which one could know"


async def test_a_search_on_llama_cpp_ends_in_its_time(free_port: int, tmp_path: Path) -> None:
    began_s = asyncio.get_running_loop().time()
    async with llama_cpp(free_port) as url:
        ask = Ask(url=url, saturate=True, max_tokens=8, slo=parse_slo("ttft=10s,itl=2s"), budget_s=60.0, client=LOOSE)
        found = await measure(ask, tmp_path / "out", Told())
        took_s = asyncio.get_running_loop().time() - began_s
    assert took_s < 150.0
    assert found.saturation is not None
    assert found.saturation.windows
    if found.saturation.low_per_s is None or found.saturation.high_per_s is None:
        assert "not bracketed" in found.saturation.text

"""What servers say of themselves, in the words of each engine, as they said it when asked."""

import aiohttp
import msgspec
import pytest

from netgain.measuring.client.endpoint import ModelCard
from netgain.measuring.measurement.identity import changes, identify
from netgain.measuring.measurement.result import Server
from tests.measuring.scripted_server import DONE, Script, ScriptedServer

LLAMA_PROPS = """{"default_generation_settings": {"params": {"seed": 4294967295}, "n_ctx": 2048}, "total_slots": 8,
 "model_ftype": "Q4_1", "model_path": "/models/Q4_1.gguf", "build_info": "b1-0c1e570"}"""
VLLM_METRICS = """# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79601165559e+09
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",kv_cache_size_tokens="46592"} 1.0
"""
NETGAIN_METRICS = """# TYPE netgain_build_info gauge
netgain_build_info{version="0.1.0"} 1.0
# TYPE netgain_engine_restarts_total counter
netgain_engine_restarts_total{replica="api"} %d
# TYPE process_start_time_seconds gauge
process_start_time_seconds %f
"""


async def told(pages: dict[str, str], card: ModelCard) -> Server:
    texts = {path: (lambda text=text: text) for path, text in pages.items()}
    async with (
        ScriptedServer(lambda _: Script([(0.0, DONE)]), pages=texts) as server,  # type: ignore[arg-type]
        aiohttp.ClientSession() as session,
    ):
        return await identify(session, server.url, f"{server.url}/metrics", card, card.id)


async def test_llama_cpp_tells_its_slots_and_their_context() -> None:
    """Each slot has a context of its own, so the cache holds slots times context."""
    metrics = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 0\n"
    card = ModelCard("m", owned_by="llamacpp", meta={"n_ctx_train": 8192, "ftype": "Q4_1"})
    server = await told({"/props": LLAMA_PROPS, "/metrics": metrics}, card)
    assert (server.engine, server.version) == ("llama.cpp", "b1-0c1e570")
    assert (server.max_model_len, server.max_running, server.kv_tokens) == (2048, 8, 16384)
    assert (server.source, server.dtype) == ("/models/Q4_1.gguf", "Q4_1")
    assert server.started_unix_s is None


async def test_vllm_tells_its_cache_and_its_start() -> None:
    card = ModelCard("m", owned_by="vllm", max_model_len=8192, root="/models/smol")
    server = await told({"/version": '{"version": "0.32.0"}', "/metrics": VLLM_METRICS}, card)
    assert (server.engine, server.version, server.source) == ("vllm", "0.32.0", "/models/smol")
    assert (server.max_model_len, server.kv_tokens, server.max_running) == (8192, 46592, None), (
        "it does not tell the last"
    )
    assert server.started_unix_s == pytest.approx(1796011655.59)
    assert server.said["enable_prefix_caching"] == "True"


async def test_a_server_that_says_nothing_is_unknown() -> None:
    server = await told({}, ModelCard("m"))
    assert msgspec.structs.replace(server, url=None) == Server(url=None, model="m")


async def test_restarts_are_seen_in_what_is_told_before_and_after() -> None:
    card = ModelCard("m", owned_by="netgain", netgain={"weights": "abc"})
    before = await told({"/metrics": NETGAIN_METRICS % (0, 1e9)}, card)
    assert changes(before, await told({"/metrics": NETGAIN_METRICS % (0, 1e9)}, card)) == ()
    (engine,) = changes(before, await told({"/metrics": NETGAIN_METRICS % (1, 1e9)}, card)) or ()
    assert "engine was restarted (0 times before, 1 after)" in engine
    (process,) = changes(before, await told({"/metrics": NETGAIN_METRICS % (0, 1e9 + 60)}, card)) or ()
    assert "started anew" in process
    (weights,) = changes(before, msgspec.structs.replace(before, weights="abd")) or ()
    assert "its weights changed from abc to abd" in weights


def test_nothing_told_is_not_taken_for_no_restart() -> None:
    nothing = Server(url=None, model="m")
    assert changes(nothing, nothing) is None


async def test_what_would_spoil_a_result_or_should_not_be_in_it_is_left_out() -> None:
    """SGLang tells its API key among its arguments; a number of more than 64 bits fits no document."""
    said = '{"api_key": "s3cret", "admin_api_key": "s3cret", "version": "0.5", "huge": 123456789012345678901234567890, '
    said += '"tp_size": 2, "max_running_requests": 1e300}'
    metrics = "# TYPE netgain_engine_restarts_total counter\nnetgain_engine_restarts_total NaN\n"
    assert (await told({"/metrics": metrics}, ModelCard("m", owned_by="netgain"))).said == {}
    server = await told({"/get_server_info": said}, ModelCard("m", owned_by="sglang"))
    assert "s3cret" not in str(server)
    assert "huge" not in server.said
    assert (server.said["tp_size"], server.max_running) == (2, None)
    assert msgspec.json.encode(server)

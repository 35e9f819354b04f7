"""Every setting that an engine tells: llama.cpp's and vLLM's answers as they were recorded, SGLang's as its source has them
(read, not run), netgain's own live."""

import pytest
from aiohttp import web

from netgain.deciding.experiment.arms.settings_told import LONGEST, all_settings, told_by
from netgain.measuring.measurement.result import Server
from netgain.secrecy import HIDDEN
from tests.deciding.compare.test_told import TOLD
from tests.measuring.measurement.test_identity import LLAMA_PROPS, VLLM_METRICS
from tests.measuring.observe.test_window import SAMPLES

SGLANG = {
    "version": "0.5.18",
    "api_key": "s3cret",
    "max_running_requests": 48,
    "speculative_algorithm": "NGRAM",
    "internal_states": [{"last_gen_throughput": 1.0, "more": "x" * 3 * LONGEST}],
}


async def told(engine, pages, owner=None, log=""):
    async def answer(request: web.Request) -> web.Response:
        page = pages.get(request.path_qs, pages.get(request.path))
        if page is None:
            raise web.HTTPNotFound
        return web.Response(text=page) if isinstance(page, str) else web.json_response(page)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pages["/v1/models"] = {"data": [{"id": "m", "owned_by": owner or engine, "max_model_len": 64}]}
    try:
        return await told_by("baseline", f"http://127.0.0.1:{runner.addresses[0][1]}", engine, log)
    finally:
        await runner.cleanup()


async def test_llama_cpp_tells_its_defaults_slots_and_version():
    found = await told("llama.cpp", {"/props": LLAMA_PROPS}, "llamacpp")
    assert (found.engine, found.version) == ("llama.cpp", "b1-0c1e570")
    assert found.settings["default_generation_settings.params.seed"] == "4294967295"
    assert (found.settings["total_slots"], found.settings["model_ftype"]) == ("8", "Q4_1")


async def test_vllm_tells_its_configuration_environment_and_cache_each_once():
    info = {"vllm_config": TOLD, "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": "0", "HF_TOKEN": "hf_abcdefghijkl"}}
    text = {**info, "vllm_config": "VllmConfig(...)"}
    metrics = (SAMPLES / "vllm-0.32-after.txt").read_text()
    pages = {"/server_info?config_format=json": info, "/server_info": text, "/version": {"version": "0.32.0"}}
    found = await told("vllm", {**pages, "/metrics": metrics})
    assert found.version == "0.32.0"
    assert found.settings["scheduler_config.max_num_seqs"] == "64"
    assert found.settings["environment.VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert found.settings["block_size"] == "128", "of its metrics"
    assert not any(name.startswith(("vllm_env", "vllm_config")) for name in found.settings)
    assert "hf_abc" not in str(found)


async def test_vllm_whose_routes_are_closed_is_known_by_its_log():
    log = "Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16, enable_prefix_caching=True\n"
    found = await told("vllm", {"/metrics": VLLM_METRICS}, log=log)
    assert found.version is None
    assert (found.settings["dtype"], found.settings["kv_cache_size_tokens"]) == ("torch.bfloat16", "46592")


async def test_sglang_tells_all_its_arguments_but_no_key_and_long_values_are_cut_and_still_differ():
    found = await told("sglang", {"/get_server_info": SGLANG})
    assert found.settings["max_running_requests"] == "48"
    assert "s3cret" not in str(found)
    longer = found.settings["internal_states"]
    assert len(longer) < LONGEST
    assert "characters, SHA-256" in longer
    nothing = Server(url=None, model="m")
    one, other = (all_settings(nothing, {"long": "x" * 2 * LONGEST + last})["long"] for last in "ab")
    assert one[: LONGEST // 2] == other[: LONGEST // 2]
    assert one != other


async def test_an_engine_that_is_not_known_tells_what_little_it_does_and_one_that_is_gone_nothing():
    assert (await told(None, {}, "somebody")).settings == {"max_model_len": "64"}
    gone = await told_by("baseline", "http://127.0.0.1:9", "vllm")
    assert (gone.engine, gone.version, gone.settings) == ("vllm", None, None)


def test_a_password_within_a_value_is_hidden():
    server = Server(url=None, model="m", said={"kv_tiers": "redis://:pass@host:1/0", "extra": "--api-key abc"})
    assert all_settings(server, None) == {"kv_tiers": f"redis://{HIDDEN}@host:1/0", "extra": f"--api-key {HIDDEN}"}


@pytest.mark.slow
async def test_a_running_netgain_tells_every_setting_of_its_configuration(tmp_path, leaves_no_process):
    from netgain.deciding.experiment.arms.netgain import launched_netgain

    arm = launched_netgain("baseline", ("--set", "engine.scheduler.max_running=3"), tmp_path / "arm.log")
    await arm.start()
    try:
        await arm.ready(120.0)
        found = await told_by("baseline", arm.url, "netgain")
    finally:
        await arm.stop()
    assert found.version
    assert found.settings["engine.scheduler.max_running"] == "3"
    assert found.settings["engine.kv.lookup_s"] == "0.5"
    assert found.settings["dtype"] == "q4_1+q8_0"

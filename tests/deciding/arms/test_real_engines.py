"""Every switch that is called verified for vLLM or llama.cpp (n-gram, and llama.cpp's for a draft model) starts the real engine,
which then drafts. Caches are reset for real. Needs the peers that `python -m benchmarks.peers --install` installs."""

import os

import psutil
import pytest

from benchmarks.peers import install
from netgain.deciding.decide.engines import engine_version
from netgain.deciding.decide.outside import step_cost_outside, with_ids
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.arms.vllm import launched_vllm
from netgain.deciding.experiment.conduct import Asking
from netgain.deciding.technique.draft_switches import model_switch
from netgain.deciding.technique.ngram_switches import ngram_switch
from netgain.errors import Unavailable
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.observe.scrape import Watch
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item, Message

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1200)]
SETTING = {"k": 4, "lookup_min": 2, "lookup_max": 3}
COPY = "Repeat this exactly, twice: def total(items): return sum(item.price * item.count for item in items)"


def llama_cpp(folder, flags, kind="Q8_0"):
    binary = install.folder() / "llama.cpp/build/bin/llama-server"
    if not binary.is_file() or not install.llama_file(kind).is_file():
        pytest.skip("llama.cpp is not installed")
    starting = Starting(
        command=f"{binary} -m {{model}} --host 127.0.0.1 --port {{port}} {{flags}}",
        flags=("-t", "1", "-tb", "1", "-np", "2", "-c", "4096", "--alias", "m"),
    )
    return launched_llama_cpp("arm", str(install.llama_file(kind)), flags, folder / "llama.log", starting)


def vllm(folder, flags):
    home = install.folder() / "vllm"
    if not (home / "ready").is_file():
        pytest.skip("vLLM is not installed")
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "LD_PRELOAD": str(home / "lib/libiomp5.so"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    common = ("--dtype", "bfloat16", "--max-model-len", "2048", "--served-model-name", "m", "--enforce-eager")
    starting = Starting(python=str(home / "bin/python"), flags=common, environment=environment)
    return launched_vllm("arm", str(install.hf_model()), flags, folder / "vllm.log", starting)


async def check(arm, engine, salted, flags):
    """Starts it with the switch, and checks everything that deciding on it rests on."""
    asked = Asking(model="m", options=Options(server_record=False, timeout_s=300.0), salted=salted)
    item = Item(id="copy", category="c", max_tokens=160, messages=(Message("user", COPY),), ignore_eos=True)
    try:
        await arm.start()
        await arm.ready(900.0)
        members = psutil.Process().children(recursive=True)
        assert await engine_version(engine, arm.url)
        configuration = await effective_configuration(arm.url, engine, arm.log)
        assert configuration
        cold = await verify_cold(arm, asked)
        assert cold.verified is True, cold.says
        watch = Watch(f"{arm.url}/metrics")
        await watch.begin()
        (record,) = (await run(arm.url, "m", [item], Closed(1), asked.under("run"))).records
        seen = await watch.end()
        assert record.ok, record.error
        figures = seen.figures
        assert seen.engine == engine
        assert figures["output_tokens"].gained == record.output_tokens
        assert 0 < figures["accepted_tokens"].gained <= figures["drafted_tokens"].gained
        (known,) = await with_ids(arm.url, engine, "m", [record], {"copy": item})
        assert len(known.server.prompt_ids) == record.prompt_tokens
        assert abs(len(known.server.output_ids) - record.output_tokens) <= 1  # an end token has no text
        cost, missing = await step_cost_outside(arm.url, engine, asked, 1, 64)
        assert cost is not None, missing
    finally:
        await arm.stop()
    _, alive = psutil.wait_procs(members, timeout=10)
    assert not alive
    return configuration, cold


async def test_llama_cpp_starts_with_the_ngram_switch_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = ngram_switch("llama.cpp", SETTING)
    _, cold = await check(llama_cpp(tmp_path, switch.flags), "llama.cpp", False, switch.flags)
    assert cold.again > 0.9 * cold.prompt_tokens
    assert cold.after_reset == 0


async def test_llama_cpp_starts_with_a_draft_model_drafts_and_is_reset(tmp_path, leaves_no_process):
    """The draft is the model itself, so that its drafts stand."""
    switch = model_switch("llama.cpp", {"k": 3, "draft": str(install.llama_file("Q8_0")), "kind": "model"})
    await check(llama_cpp(tmp_path, switch.flags), "llama.cpp", False, switch.flags)


async def test_llama_cpp_without_a_prompt_cache_is_cold_without_a_reset(tmp_path, leaves_no_process):
    arm = llama_cpp(tmp_path, ("--no-cache-prompt",))
    try:
        await arm.start()
        await arm.ready(300.0)
        cold = await verify_cold(arm, Asking(model="m", options=Options(server_record=False), salted=False))
    finally:
        await arm.stop()
    assert cold.verified is True
    assert cold.again == 0


async def test_llama_cpp_that_cannot_start_says_why(tmp_path, leaves_no_process):
    arm = llama_cpp(tmp_path, ("--spec-type", "ngram-nonsense"))
    await arm.start()
    with pytest.raises(Unavailable, match=r"spec-type|speculative|ngram-nonsense"):
        await arm.ready(60.0)
    await arm.stop()


async def test_vllm_starts_with_the_ngram_switch_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = ngram_switch("vllm", SETTING)
    configuration, cold = await check(vllm(tmp_path, switch.flags), "vllm", True, switch.flags)
    assert cold.again > 0.5 * cold.prompt_tokens
    assert cold.after_reset == 0, "the reset route did it, not the salts"
    assert any("speculative" in name for name in configuration)

"""Switches for drafting that are called verified for vLLM or llama.cpp start the real engine, of the version that they name,
which then drafts. Caches are reset for real. Needs the peers that `python -m benchmarks.peers --install` installs."""

import psutil
import pytest

from benchmarks.peers import install
from netgain.deciding.decide.kv_outside import kv_told
from netgain.deciding.decide.outside import step_cost_outside, with_ids
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.conduct import Asking
from netgain.deciding.technique.catalogue import technique
from netgain.deciding.technique.tiering_switches import tiering_switch
from netgain.errors import Unavailable
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.observe.scrape import Watch
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item
from tests.deciding.arms.real_engines import ITEM, is_checked, llama_cpp, switch_of, vllm
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("flags", [(), ("--no-cache-idle-slots",), ("--cache-ram", "0")])
async def test_a_running_llama_server_whose_second_cache_is_on_is_not_called_cold(tmp_path, flags):
    """As at a URL: nothing is known of its flags, and it tells of that cache nowhere."""
    off = "--cache-ram" in flags
    arm = llama_cpp(tmp_path, flags if off else ("--cache-ram", "8192", *flags))
    try:
        await arm.start()
        await arm.ready(120.0)
        running = AttachedServer("baseline", arm.url, "llama.cpp", may_reset=True)
        found = await verify_cold(running, Asking(model="m", options=Options(server_record=False), salted=False))
    finally:
        await arm.stop()
    assert found.after_reset == 0
    assert found.verified is off, found.says
    assert (found.after_others == 0) is off


async def check(arm, switch, salted):
    """Starts it with the switch, and checks everything that deciding on it rests on."""
    engine = switch.engine
    asked = Asking(model="m", options=Options(server_record=False, timeout_s=300.0), salted=salted)
    try:
        await arm.start()
        await arm.ready(900.0)
        members = psutil.Process().children(recursive=True)
        assert await is_checked(switch, arm.url)
        configuration = await effective_configuration(arm.url, engine, arm.log)
        assert configuration
        cold = await verify_cold(arm, asked)
        assert cold.verified is True, cold.says
        watch = Watch(f"{arm.url}/metrics")
        await watch.begin()
        (record,) = (await run(arm.url, "m", [ITEM], Closed(1), asked.under("run"))).records
        seen = await watch.end()
        assert record.ok, record.error
        figures = seen.figures
        assert seen.engine == engine
        assert figures["output_tokens"].gained == record.output_tokens
        assert 0 < figures["accepted_tokens"].gained <= figures["drafted_tokens"].gained
        (known,) = await with_ids(arm, engine, "m", [record], {"copy": ITEM})
        assert len(known.server.prompt_ids) == record.prompt_tokens
        # end tokens, of which there may be several where none ends an answer, have no text
        assert 0.9 * record.output_tokens <= len(known.server.output_ids) <= record.output_tokens + 1
        cost, missing = await step_cost_outside(arm.url, engine, asked, 1, 64)
        assert cost is not None, missing
    finally:
        await arm.stop()
    _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    assert not alive
    return configuration, cold


async def test_llama_cpp_starts_with_the_ngram_switch_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = switch_of("ngram", "llama.cpp")
    _, cold = await check(llama_cpp(tmp_path, switch.flags), switch, salted=False)
    assert cold.again > 0.9 * cold.prompt_tokens
    assert cold.after_reset == 0


async def test_llama_cpp_starts_with_a_draft_model_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = switch_of("draft", "llama.cpp")
    await check(llama_cpp(tmp_path, switch.flags), switch, salted=False)


async def test_llama_cpp_with_a_tier_in_memory_finds_a_prompt_that_another_one_displaced(tmp_path, leaves_no_process):
    """One slot, so that the second prompt takes the first one's place on the device. What `--flags` say counts, so the tier is
    tried as decide starts it. A mark in the prompt keeps a repeat apart, as deciding needs where there are no salts."""
    switch = tiering_switch("llama.cpp", {"tier": "dram", "gib": 0.25})
    arm = llama_cpp(tmp_path, (*switch.flags, "-np", "1"))
    texts = [" ".join(f"{word} {n}" for n in range(60)) for word in ("alder", "birch", "alder")]
    items = [Item(id=f"p{at}", category="c", max_tokens=2, prompt=text) for at, text in enumerate(texts)]
    asked = Asking(model="m", options=Options(server_record=False, timeout_s=300.0), salted=False, reuses=True)
    try:
        await arm.start()
        await arm.ready(300.0)
        found = [
            (await run(arm.url, "m", asked.marked([item], "a"), Closed(1), asked.options)).records[0] for item in items
        ]
        cold = await verify_cold(arm, asked)
        told = await kv_told(
            Settings(
                output=tmp_path, engine="llama.cpp", model=str(install.llama_file("Q8_0")), techniques=("kv-tiers",)
            ),
            arm,
        )
    finally:
        await arm.stop()
    assert found[1].cached_tokens < 0.1 * found[1].prompt_tokens
    assert found[2].cached_tokens > 0.9 * found[2].prompt_tokens
    assert cold.verified is True, cold.says
    assert told == {"kv_tokens": "4096", "kv_token_bytes": str(2 * 30 * 3 * 64 * 2)}


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
    switch = switch_of("ngram", "vllm")
    configuration, cold = await check(vllm(tmp_path, switch.flags), switch, salted=True)
    assert cold.again > 0.5 * cold.prompt_tokens
    assert cold.after_reset == 0, "the reset route did it, not the salts"
    assert any("speculative" in name for name in configuration)


async def test_vllm_starts_with_a_draft_model_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = switch_of("draft", "vllm")
    await check(vllm(tmp_path, switch.flags), switch, salted=True)


async def test_vllm_starts_with_the_suffix_switch_drafts_and_is_reset(tmp_path, leaves_no_process):
    switch = switch_of("suffix", "vllm")
    await check(vllm(tmp_path, switch.flags), switch, salted=True)


async def test_vllm_starts_with_its_kv_in_8_bits_of_which_twice_as_many_fit(tmp_path, leaves_no_process):
    """The room is that of the flag before, in the same GiB."""
    switch, fits = switch_of("kv-int8", "vllm"), {}
    settings = Settings(output=tmp_path, engine="vllm", model=str(install.hf_model()), techniques=("kv-tiers",))
    for name, flags in (("16 bit", ()), ("8 bit", switch.flags)):
        arm = vllm(tmp_path, flags)
        try:
            await arm.start()
            await arm.ready(900.0)
            assert await is_checked(switch, arm.url)
            told = await kv_told(settings, arm)
            fits[name] = (told["kv_dtype"], int(told["kv_tokens"]))
            options = Options(server_record=False, timeout_s=300.0)
            (record,) = (await run(arm.url, "m", [ITEM], Closed(1), options)).records
            assert record.ok, record.error
            assert record.output_tokens == ITEM.max_tokens
        finally:
            await arm.stop()
    (wide, few), (narrow, many) = fits["16 bit"], fits["8 bit"]
    assert (wide, narrow) == ("bfloat16", "fp8")
    assert many == 2 * few


async def test_vllm_on_cpus_says_why_it_keeps_no_kv_beyond_the_device(tmp_path, leaves_no_process):
    """So the switch stays unverified: it was only read."""
    switch = technique("kv-tiers").switch_on("vllm", {"tier": "dram", "gib": 1})
    assert not switch.verified
    arm = vllm(tmp_path, switch.flags)
    try:
        await arm.start()
        with pytest.raises(Unavailable, match="CPU Offloading is currently only supported on CUDA-alike and XPU"):
            await arm.ready(900.0)
    finally:
        await arm.stop()

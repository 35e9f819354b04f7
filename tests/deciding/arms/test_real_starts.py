"""What users give real engines besides a technique: ports, other names of flags, variables; and llama.cpp's second cache. Needs
the peers that `python -m benchmarks.peers --install` installs."""

import msgspec
import pytest

from netgain.deciding.decide.engines import engine_version
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.conduct import Asking
from netgain.errors import UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Message
from tests.deciding.arms.real_engines import ITEM, LLAMA_FLAGS, is_checked, llama_cpp, switch_of, vllm

pytestmark = [pytest.mark.peers, pytest.mark.timeout(1200)]
ONE_SLOT = ("-t", "1", "-tb", "1", "--parallel", "1", "--ctx-size", "2048", "--alias", "m")
ASKED = Asking(model="m", options=Options(server_record=False, timeout_s=300.0), salted=False)


async def found_again(arm, text, reset=False):
    """Cached tokens of a prompt that is asked again after another took its slot, `reset` or not in between."""
    first, other = (
        msgspec.structs.replace(ITEM, id=name, max_tokens=1, messages=(Message("user", said),))
        for name, said in (("first", f"{text} " * 30), ("other", "An unlike prompt about ships and sails. " * 30))
    )
    for item in (first, other):
        (asked,) = (await run(arm.url, "m", [item], Closed(1), ASKED.options)).records
        assert asked.ok, asked.error
    if reset:
        await arm.reset()
    (again,) = (await run(arm.url, "m", [first], Closed(1), ASKED.options)).records
    assert again.ok, again.error
    return again.cached_tokens, again.prompt_tokens


@pytest.mark.parametrize("start", [llama_cpp, vllm])
async def test_a_pinned_port_is_used_at_every_start_and_never_shared(start, free_port, tmp_path, leaves_no_process):
    arm = start(tmp_path, port=free_port)
    assert str(free_port) in arm.command
    for _ in range(2 if start is llama_cpp else 1):
        try:
            await arm.start()
            await arm.ready(900.0)
            assert arm.url == f"http://127.0.0.1:{free_port}"
            assert await engine_version("llama.cpp" if start is llama_cpp else "vllm", arm.url, {})
            with pytest.raises(UsageError, match=f"port {free_port} of the arm arm cannot be used"):
                await start(tmp_path / "other", port=free_port).start()
        finally:
            await arm.stop()


@pytest.mark.parametrize(
    ("flags", "environment", "env"),
    [
        (("-cram", "512"), {}, ""),
        (("--cache_ram", "512"), {}, ""),
        ((), {"LLAMA_ARG_CACHE_RAM": "512"}, ""),
        ((), {}, "env LLAMA_ARG_CACHE_RAM=512"),
    ],
)
async def test_llama_cpps_second_cache_is_kept_however_its_user_asks_for_it(
    flags, environment, env, tmp_path, leaves_no_process
):
    """What the caveat says is so: erasing the slots does not reach it."""
    arm = llama_cpp(tmp_path, common=(*ONE_SLOT, *flags), environment=environment, env=env)
    try:
        await arm.start()
        await arm.ready(300.0)
        cold = await verify_cold(arm, ASKED)
        assert cold.verified is None
        assert "512 keeps in memory are not reached" in cold.says
        cached, tokens = await found_again(arm, "Tell of harbours", reset=True)
    finally:
        await arm.stop()
    assert cached > 0.9 * tokens


async def test_llama_cpp_keeps_no_second_cache_while_it_is_measured(tmp_path, leaves_no_process):
    arm = llama_cpp(tmp_path, common=ONE_SLOT)
    try:
        await arm.start()
        await arm.ready(300.0)
        assert (await verify_cold(arm, ASKED)).verified is True
        cached, tokens = await found_again(arm, "Tell of harbours")
    finally:
        await arm.stop()
    assert cached < 0.2 * tokens


@pytest.mark.parametrize(("told", "metrics"), [("1", True), ("0", False)])
async def test_llama_cpps_metrics_are_as_its_user_sets_them(told, metrics, tmp_path, leaves_no_process):
    arm = llama_cpp(tmp_path, environment={"LLAMA_ARG_ENDPOINT_METRICS": told})
    try:
        await arm.start()
        await arm.ready(300.0)
        assert (await snapshot(f"{arm.url}/metrics") is not None) == metrics
    finally:
        await arm.stop()


async def test_llama_cpp_takes_its_flags_from_variables(tmp_path, leaves_no_process):
    """The short names of the command line are the defaults of the arm's own; these come through its environment."""
    environment = {"LLAMA_ARG_N_PARALLEL": "3", "LLAMA_ARG_CTX_SIZE": "3072", "LLAMA_ARG_THREADS": "1"}
    arm = llama_cpp(tmp_path, common=LLAMA_FLAGS[-2:], environment=environment)
    try:
        await arm.start()
        await arm.ready(300.0)
        assert (await arm.reset()) == "all 3 slots erased"
    finally:
        await arm.stop()


async def test_llama_cpp_starts_with_the_switch_for_tiers_and_finds_prompts_there(tmp_path, leaves_no_process):
    switch = switch_of("kv-tiers", "llama.cpp")
    arm = llama_cpp(tmp_path, switch.flags, common=ONE_SLOT)
    try:
        await arm.start()
        await arm.ready(300.0)
        assert await is_checked(switch, arm.url)
        cached, tokens = await found_again(arm, "Tell of harbours")
    finally:
        await arm.stop()
    assert cached > 0.9 * tokens

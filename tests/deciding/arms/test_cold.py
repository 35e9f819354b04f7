"""A reset is believed when the counters show it, whatever the server answered."""

import shlex
import sys
from contextlib import asynccontextmanager

import pytest

from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.conduct import Asking
from netgain.measuring.client.options import Options
from tests.deciding.arms import engine_double
from tests.deciding.arms.engine_double import EngineDouble
from tests.waiting import PATIENCE_S


@asynccontextmanager
async def probed(salts=True, reuses=False, **double):
    server = await EngineDouble(**double).start()
    try:
        headers = {} if server.key is None else {"Authorization": server.key}
        arm = AttachedServer("baseline", server.url, engine=server.engine, may_reset=True, headers=headers)
        options = Options(server_record=False, headers=headers)
        yield await verify_cold(arm, Asking(model="m", options=options, salted=salts, reuses=reuses))
    finally:
        await server.stop()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
async def test_a_reset_that_works_is_verified_by_the_counters(engine):
    async with probed(engine=engine, salted=engine != "llama.cpp", salts=engine != "llama.cpp") as found:
        assert found.verified is True, found.says
        assert found.caveat is None
        assert (found.again, found.after_reset) == (192, 0)


async def test_a_second_cache_that_no_flag_tells_of_is_found_behind_other_prompts():
    """llama-server with --cache-ram (on by default) at a URL: a probe that is repeated at once looks cold after its reset."""
    async with probed(engine="llama.cpp", salted=False, salts=False, remembers=True) as found:
        assert (found.verified, found.again, found.after_reset, found.after_others) == (False, 192, 0, 192)
        assert "contradicted" in found.caveat
        assert "start it with --cache-ram 0" in found.caveat
    async with probed(engine="llama.cpp", salted=False, salts=False) as found:
        assert (found.verified, found.after_others) == (True, 0)


@pytest.mark.parametrize("resets", ["pretends", "refuses", "absent"])
async def test_a_reset_that_does_nothing_is_found_out_and_salts_are_verified_instead(resets):
    async with probed(resets=resets) as found:
        assert found.verified is True
        assert (found.again, found.after_reset, found.after_salt) == (192, 192, 0)
        assert "another cache salt" in found.says


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
async def test_where_neither_reset_nor_salts_work_the_result_carries_a_caveat(engine):
    async with probed(engine=engine, resets="refuses", salted=False, salts=engine != "llama.cpp") as found:
        assert found.verified is False
        assert "contradicted" in found.caveat
        assert "192 of them after the reset" in found.caveat


async def test_a_server_that_asks_for_a_key_is_reset_with_it():
    async with probed(key="Bearer k") as found:
        assert found.verified is True, found.says
        assert found.after_reset == 0


@pytest.mark.parametrize("salts", [True, False])
async def test_a_server_that_answers_nothing_after_its_reset_is_not_called_cold(salts):
    async with probed(resets="breaks", salts=salts) as found:
        assert found.verified is None
        assert found.after_reset is None
        assert "an unknown number of them after the reset" in found.caveat


@pytest.mark.parametrize(("engine", "salts"), [("vllm", True), ("llama.cpp", False)])
async def test_where_nothing_is_reset_the_salt_or_the_mark_in_the_prompt_has_to_keep_repeats_apart(engine, salts):
    async with probed(engine=engine, salts=salts, salted=salts, reuses=True, resets="refuses") as found:
        assert found.verified is True, found.says
        assert (found.again, found.after_reset, found.after_salt) == (192, None, 0)
    async with probed(engine="vllm", salted=False, reuses=True) as found:
        assert found.verified is False, "salts that are ignored"


async def test_an_engine_without_a_prefix_cache_is_cold_without_a_reset():
    async with probed(keeps=False) as found:
        assert found.verified is True
        assert "cold without a reset" in found.says


async def test_counters_that_stay_at_zero_while_prompts_are_found_again_are_not_believed():
    """vllm-project/vllm-ascend#16639: the hit counter stayed 0 while hits happened."""
    async with probed(counts=False, prefill_s=0.3) as found:
        assert found.verified is None
        assert "cannot be trusted" in found.caveat


async def test_a_first_answer_that_is_slow_by_chance_is_no_sign_of_hits_that_are_not_counted():
    async with probed(keeps=False, warms_up_s=0.3) as found:
        assert found.verified is True, found.says


async def test_a_server_that_is_gone_is_not_verified():
    arm = AttachedServer("baseline", "http://127.0.0.1:9", engine="vllm", may_reset=True)
    found = await verify_cold(arm, Asking(model="m", options=Options(server_record=False)))
    assert found.verified is None
    assert "not verified" in found.caveat


@pytest.mark.parametrize(
    ("flags", "environment", "kept"),
    [
        ((), {}, None),
        (("--cache-ram", "0"), {}, None),
        (("--cache-ram", "8192"), {}, "--cache-ram 8192"),
        ((), {"LLAMA_ARG_CACHE_RAM": "64"}, "LLAMA_ARG_CACHE_RAM=64"),
    ],
)
async def test_a_second_cache_that_the_user_asked_for_is_what_ran_and_is_not_called_cold(
    tmp_path, leaves_no_process, flags, environment, kept
):
    """Erasing slots shows a probe cold, and leaves what other blocks asked in that cache."""
    command = (
        f"{shlex.quote(sys.executable)} {shlex.quote(engine_double.__file__)} -m {{model}} --port {{port}} {{flags}}"
    )
    starting = Starting(command=command, flags=flags, environment=environment)
    arm = launched_llama_cpp("baseline", "m.gguf", (), tmp_path / "arm.log", starting)
    await arm.start()
    try:
        await arm.ready(PATIENCE_S)
        found = await verify_cold(arm, Asking(model="m", options=Options(server_record=False), salted=False))
    finally:
        await arm.stop()
    assert " ".join(arm.command).endswith(" ".join(flags))
    assert arm.log.count("--cache-ram 0") == (1 if kept is None else 0)
    assert (found.again, found.after_reset) == (192, 0)
    if kept is None:
        assert found.verified is True
    else:
        assert found.verified is None
        assert f"the prompts that {kept} keeps in memory" in found.caveat

"""What a wider step costs, found out from outside: as many widths as the server runs together and as time allows."""

from pathlib import Path

import msgspec
import pytest

from netgain.deciding.decide.engines import asking, prompt_cost, step_cost
from netgain.deciding.decide.outside import _gaps_after, step_cost_outside
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.conduct import Asking
from netgain.measuring.client.options import Options
from tests.deciding.arms.engine_double import EngineDouble

ASKING = Asking(model="m", options=Options(timeout_s=20.0))


async def test_every_width_is_measured_where_there_is_room_and_time(serve):
    cost, missing = await step_cost_outside(await serve(16), "vllm", ASKING, 1, 32)
    assert missing is None
    assert sorted(point.tokens for point in cost.points) == [1, 2, 3, 4, 5, 6, 9]
    assert all(0.001 < point.seconds < 0.1 for point in cost.points)


async def test_widths_that_the_server_does_not_run_together_are_left_out(serve):
    cost, _ = await step_cost_outside(await serve(3), "vllm", ASKING, 1, 32)
    assert sorted(point.tokens for point in cost.points) == [1, 2, 3]


async def test_a_slow_server_is_asked_for_two_widths_that_are_far_apart(serve):
    """Measuring all of them took minutes on a server of a few tokens per second."""
    cost, _ = await step_cost_outside(await serve(16), "vllm", ASKING, 1, 32, budget_s=0.0)
    assert sorted(point.tokens for point in cost.points) == [1, 5]


async def test_a_server_that_runs_one_request_at_a_time_leaves_the_cost_unknown(serve):
    cost, missing = await step_cost_outside(await serve(1), "llama.cpp", ASKING, 1, 32)
    assert cost is None
    assert "2 requests" in missing


def test_tokens_that_arrive_in_one_piece_are_one_step(make_record):
    """llama.cpp with a draft model sends what it commits in a step at once: steps that took no time ended the run."""
    record = msgspec.structs.replace(
        make_record(), chunk_times_s=(1.0, 1.0, 1.5, 1.5, 1.5, 2.0), chunk_tokens=(1, 1, 1, 1, None, 1)
    )
    assert _gaps_after(record, 0.0) == [0.25, 0.5]


@pytest.mark.parametrize(("technique", "contexts"), [("ngram", 1), ("kv-int8", 2)])
async def test_a_longer_context_is_measured_for_the_technique_that_reads_less_kv(serve, technique, contexts):
    """Contexts are what the server counts: its tokens are words, of which prompts have about half of what is aimed at."""
    settings = Settings(output=Path("unused"), engine="vllm", model="m", techniques=(technique,))
    cost, missing, _ = await step_cost(settings, await serve(16), ASKING)
    assert missing is None
    found = sorted({point.context for point in cost.points})
    assert len(found) == contexts
    assert 60 <= found[0] <= 70
    assert contexts == 1 or 510 <= found[1] <= 520
    assert sorted(point.tokens for point in cost.points if point.context == found[-1]) == (
        [1, 2] if contexts == 2 else [1, 2, 3, 4, 5, 6, 9]
    )


async def test_for_tiers_prompts_of_several_lengths_are_measured_to_their_first_token(tmp_path):
    """Twice as long, twice as dear; each is new, so nothing of it is found."""
    server = await EngineDouble(engine="llama.cpp", prefill_s=0.02, salted=False).start()
    try:
        settings = Settings(output=tmp_path, engine="llama.cpp", model="m", techniques=("kv-tiers",))
        cost, missing, basis = await step_cost(settings, server.url, asking(settings, "m"))
    finally:
        await server.stop()
    assert missing is None
    assert "first token" in basis
    assert [point.tokens for point in cost.points] == [10, 130, 514, 1026], "as the server counts them"
    assert all(point.seconds > 0.015 for point in cost.points)
    assert server.totals[2] == 0, "no cached token"


async def test_beside_another_technique_prompts_are_measured_apart_from_steps(serve):
    both = Settings(output=Path("unused"), engine="vllm", model="m", techniques=("kv-tiers", "ngram"))
    url = await serve(16)
    cost, missing, basis = await step_cost(both, url, ASKING)
    prompts = await prompt_cost(both, url, ASKING)
    assert missing is None
    assert max(point.tokens for point in cost.points) == 9, "no prompt is taken for a step of drafts"
    assert "first token" not in basis
    assert min(point.tokens for point in prompts.cost.points) > 9
    assert "first token" in prompts.basis
    alone = msgspec.structs.replace(both, techniques=("kv-tiers",))
    assert await prompt_cost(alone, url, ASKING) is None, "the cost of steps is that of prompts"


async def test_a_server_that_does_not_count_tokens_leaves_the_cost_of_prompts_unknown(tmp_path):
    server = await EngineDouble(engine="vllm", tells_usage=False).start()
    try:
        settings = Settings(output=tmp_path, engine="vllm", model="m", techniques=("kv-tiers",))
        cost, missing, _ = await step_cost(settings, server.url, asking(settings, "m"))
    finally:
        await server.stop()
    assert cost is None
    assert "how many tokens a prompt has" in missing

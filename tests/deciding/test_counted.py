"""What servers count beside what the client counts: agreement, its limits, and what is not known."""

import msgspec
from aiohttp import web

from netgain.deciding.decide.counted import committed_per_step
from netgain.deciding.experiment.agreement import check_counts, compare_counts
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.counting import FigureLog
from netgain.measuring.observe.names import Figure


def counters(**gained):
    units = {"requests": "requests", "draft_steps": "steps"}
    return {
        name: Figure(role="counter", unit=units.get(name, "tokens"), name=f"vllm:{name}", tried=(), gained=value)
        for name, value in gained.items()
    }


class Counting:
    """Serves whatever counters it is told."""

    def __init__(self):
        self.values = (0, 0)
        self.prefix = "vllm:"

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/metrics", self.metrics)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.arms = {"arm": AttachedServer("arm", f"http://127.0.0.1:{self.runner.addresses[0][1]}")}
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def metrics(self, request):
        names = (f"{self.prefix}generation_tokens_total", f"{self.prefix}spec_decode_num_accepted_tokens_total")
        lines = [f"# TYPE {name} counter\n{name} {value}\n" for name, value in zip(names, self.values, strict=True)]
        return web.Response(text="".join(lines))


async def test_counters_of_several_starts_add_up():
    log = FigureLog()
    async with Counting() as server:
        for _ in range(2):
            server.values = (0, 0)
            await log.begin(server.arms)
            server.values = (21, 10)
            await log.end(server.arms)
        assert log.engine("arm") == "vllm"
    assert {name: figure.gained for name, figure in log.figures("arm").items() if figure.name} == {
        "output_tokens": 42,
        "accepted_tokens": 20,
    }


async def test_a_start_that_told_nothing_leaves_no_sum():
    log = FigureLog()
    async with Counting() as server:
        for prefix in ("other:", "vllm:"):
            server.prefix, server.values = prefix, (100, 50)
            await log.begin(server.arms)
            server.values = (200, 100)
            await log.end(server.arms)
    assert log.figures("arm") == {}


def test_tokens_per_step_by_the_engines_own_counters(make_record):
    # two requests: 40 tokens after the first ones, of which 20 were accepted drafts, so 20 steps
    records = [make_record("a"), make_record("b")]
    assert committed_per_step(counters(output_tokens=42, accepted_tokens=20), (), records) == 2.0
    assert committed_per_step(counters(output_tokens=42, accepted_tokens=0), (), records) is None, "nothing was drafted"
    assert committed_per_step(counters(output_tokens=42), (), records) is None, "not told"
    assert committed_per_step({}, (), records) is None


def test_drafts_behind_an_answers_end_are_no_tokens_of_a_step(make_record):
    """vLLM 0.32.0 counted 624 accepted drafts for 12 answers that hold 600: 5.7 tokens per step, with 4 drafts at most."""
    records = [make_record("a", per_chunk=4), make_record("b", per_chunk=4)]  # 16 tokens after the first in 4 chunks
    told = counters(output_tokens=34, accepted_tokens=27, draft_steps=8, drafted_tokens=24)
    counted = compare_counts("candidate", "vllm", told, records)
    assert committed_per_step(told, counted, records) == 4.0, "as the client saw it"
    assert committed_per_step(told, (), records) == 4.0, "at least as many steps as had drafts"


def test_server_and_client_that_count_the_same_agree(make_record):
    records = [make_record("a"), make_record("b")]
    told = counters(requests=2, prompt_tokens=80, cached_tokens=0, output_tokens=34)
    rows = compare_counts("candidate", "vllm", told, records)
    assert {row.figure: row.agree for row in rows} == dict.fromkeys(told, True)
    assert check_counts(rows).ok is True


def test_accepted_drafts_are_what_came_with_others_in_one_chunk(make_record):
    records = [make_record("a", per_chunk=4), make_record("b", per_chunk=4)]  # 16 tokens after the first in 4 chunks
    drafts = {"draft_steps": 8, "drafted_tokens": 24}
    row, *others = compare_counts("candidate", "vllm", counters(accepted_tokens=26, **drafts), records)
    assert [(one.figure, one.client, one.agree) for one in others] == [
        ("drafted_tokens", None, None),
        ("draft_steps", None, None),
    ], "drafts that do not stand never leave the server"
    assert (row.server, row.client, row.agree) == (26, 24, True)
    assert row.room == 2 * (1 + 3), "an answer may end inside a step: one and a mean draft for each"
    row, *_ = compare_counts("candidate", "vllm", counters(accepted_tokens=40, **drafts), records)
    assert row.agree is False
    (row,) = compare_counts("candidate", "llama.cpp", counters(accepted_tokens=26), records)
    assert (row.server, row.client) == (26, None), "a chunk is no step"


def test_a_chunk_whose_tokens_were_guessed_tells_nothing_of_drafts(make_record):
    guessed = msgspec.structs.replace(make_record("a"), tokens_source="total")
    (row,) = compare_counts("candidate", "vllm", counters(accepted_tokens=3), [guessed])
    assert (row.client, row.agree) == (None, None)


def test_a_failed_request_leaves_the_clients_counts_unknown(make_record):
    rows = compare_counts("baseline", "vllm", counters(output_tokens=20), [make_record("a"), make_record(error="cut")])
    assert [(row.server, row.client, row.agree) for row in rows] == [(20, None, None)]
    assert check_counts(rows).ok is None


def test_a_difference_is_said_and_a_large_one_voids_the_run(make_record):
    records = [make_record("a")]
    small = check_counts(compare_counts("baseline", "vllm", counters(output_tokens=18), records))
    assert small.ok is None
    assert small.says == "baseline counted 18 output tokens, the client 17"
    large = check_counts(compare_counts("baseline", "vllm", counters(output_tokens=34), records))
    assert large.ok is False

"""The timing client against scripted servers: what counts as a token, as late, as failed."""

import asyncio
import json
import resource
import time
from collections.abc import Callable

import msgspec
import pytest
from scripted_server import DONE, Script, ScriptedServer, Seen, chunk, event, final_usage

from netgain.errors import UsageError
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import ClientStage, Stage
from netgain.measuring.client.meter import ClientLoad
from netgain.measuring.client.options import Budget, Options
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.run import Progress, Run, run
from netgain.measuring.client.summary import Summary, summarise
from netgain.measuring.workload.arrivals import Closed, Constant, Poisson
from netgain.measuring.workload.item import Item, Message

LOOSE = Budget(lateness_p99_s=5.0, loop_lag_p99_s=5.0, cpu_share=5.0)
SLACK_S = 0.5  # what a busy machine may add to a time


def items(count: int = 1, max_tokens: int = 512) -> list[Item]:
    return [
        Item(id=f"i{n}", category="c", max_tokens=max_tokens, messages=(Message("user", f"question {n}"),))
        for n in range(count)
    ]


def always(script: Script) -> Callable[[Seen], Script]:
    return lambda _: script


async def one(script: Script, **options: object) -> ClientRecord:
    """The record of a single request that is answered by `script`."""
    return (await timed(script, **options))[0]


async def timed(script: Script, **options: object) -> tuple[ClientRecord, list[float]]:
    """As `one`, with the times at which the server wrote the steps of the script."""
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(), Closed(1), Options(budget=LOOSE, **options))  # type: ignore[arg-type]
    assert len(result.records) == 1
    return result.records[0], server.seen[0].written_s


def is_step(at_s: float | None, written_s: list[float], step: int) -> bool:
    """Whether a stamp of the client is the arrival of that step: after it was written, and before the next one was."""
    return at_s is not None and written_s[step] <= at_s < (*written_s, written_s[-1] + SLACK_S)[step + 1]


async def test_first_token_is_the_first_chunk_with_text() -> None:
    script = Script(
        [
            (0.010, chunk(role="assistant", content="")),
            (0.020, chunk("")),
            (0.200, chunk("Hello")),
            (0.500, final_usage(1) + DONE),
        ]
    )
    record, written_s = await timed(script)
    assert is_step(record.first_token_s, written_s, 2)
    assert is_step(record.finished_s, written_s, 3)
    assert record.ok
    assert record.ttft_s is not None
    assert 0.2 <= record.ttft_s < record.e2e_s
    assert record.tpot_s is None  # one chunk: there is no time per later token
    assert summarise_one(record).tpot.p50 is None


async def test_usage_after_a_single_text_chunk_leaves_its_time_alone() -> None:
    record, written_s = await timed(Script([(0.1, chunk("Hello", finish="stop")), (0.3, final_usage(3) + DONE)]))
    assert is_step(record.first_token_s, written_s, 0)
    assert (record.output_tokens, record.tokens_source) == (3, "total")


@pytest.mark.parametrize("running", [True, False])
async def test_time_over_tokens_when_chunks_hold_several(running: bool) -> None:
    steps = [
        (0.0, chunk("abcd", usage=1 if running else None)),
        (0.1, chunk("abcd" * 4, usage=5 if running else None)),
        (0.2, chunk("abcd" * 4, usage=9 if running else None, finish="stop")),
        (0.2, final_usage(9) + DONE),
    ]
    record, written_s = await timed(Script(steps))
    assert all(is_step(at_s, written_s, step) for step, at_s in enumerate(record.chunk_times_s[:2]))
    summary = summarise_one(record)
    assert record.chunk_tokens == (1, 4, 4)
    assert record.tokens_source == ("usage" if running else "total")
    first_s, second_s, third_s = record.chunk_times_s
    assert record.tpot_s == pytest.approx((third_s - first_s) / 8)  # 25 ms as scripted
    assert summary.itl.mean == pytest.approx((third_s - first_s) / 8)
    assert summary.chunk_gap.mean == pytest.approx((third_s - first_s) / 2)  # 100 ms as scripted
    assert summary.chunk_gap.p99 == pytest.approx(max(second_s - first_s, third_s - second_s))
    assert (summary.itl.count, summary.chunk_gap.count) == (8, 2)


@pytest.mark.parametrize(
    ("last", "usages", "source"),
    [
        ([final_usage(5), DONE], None, "total"),
        ([DONE], None, "chunks"),
        ([final_usage(5), DONE], [1, 2, 3, 4, 5], "usage"),
        ([event({"usage": {"completion_tokens": 5}}), DONE], None, "total"),  # no choices at all
        ([event({"choices": None, "usage": {"completion_tokens": 5}}), event({}), DONE], None, "total"),
    ],
)
async def test_five_tokens_however_they_are_counted(last: list[bytes], usages: list[int] | None, source: str) -> None:
    steps = [(0.01 * n, chunk("word ", usage=usages[n] if usages else None)) for n in range(5)]
    record = await one(Script([*steps, *((0.06, data) for data in last)]))
    assert (record.output_tokens, record.tokens_source, record.error) == (5, source, None)
    assert record.text == "word " * 5


@pytest.mark.parametrize("spelling", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("answers", [True, False])
async def test_reasoning_is_tokens_and_the_answer_is_timed_apart(spelling: str, answers: bool) -> None:
    steps = [(0.1 + 0.02 * n, chunk(**{spelling: "think "})) for n in range(3)]
    steps += [(0.3, chunk("Yes.", finish="stop"))] if answers else [(0.3, chunk(finish="length"))]
    record, written_s = await timed(Script([*steps, (0.5, final_usage(4 if answers else 3) + DONE)]))
    assert is_step(record.first_token_s, written_s, 0)
    if answers:
        assert is_step(record.first_text_s, written_s, 3)
    else:
        assert record.first_text_after_s is None
    assert record.output_tokens == (4 if answers else 3)
    assert record.reasoning == "think " * 3


async def test_tool_calls_are_tokens() -> None:
    call = [{"index": 0, "function": {"name": "add", "arguments": "{}"}}]
    record, written_s = await timed(
        Script([(0.05, chunk(tool_calls=call)), (0.2, chunk(finish="tool_calls")), (0.2, DONE)])
    )
    assert is_step(record.first_token_s, written_s, 0)
    assert record.text == ""


async def test_split_bytes_comments_and_crlf_are_read() -> None:
    data = (b": keep-alive\n\n" + chunk("naïve \U0001f600") + chunk(finish="stop") + DONE).replace(b"\n", b"\r\n")
    record = await one(Script([(0.001 * place, data[place : place + 1]) for place in range(len(data))]))
    assert record.text == "naïve \U0001f600"
    assert record.ok


async def test_plain_completions_are_timed_too() -> None:
    script = Script([(0.0, event({"choices": [{"text": "fox", "finish_reason": "stop"}]})), (0.0, DONE)])
    async with ScriptedServer(always(script)) as server:
        item = Item(id="p", category="c", max_tokens=4, prompt="a quick brown", temperature=0.5, seed=3, stop=("\n",))
        result = await run(server.url + "/v1/", "m", [item], Closed(1), Options(extra_body={"user": "u"}))
    assert result.records[0].text == "fox"
    seen = server.seen[0]
    assert seen.path == "/v1/completions"
    assert seen.body == {
        "model": "m",
        "prompt": "a quick brown",
        "max_tokens": 4,
        "temperature": 0.5,
        "seed": 3,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "user": "u",
    }


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (Script([(0, b'{"error": {"message": "too long: 9000"}}')], status=400), ErrorKind.HTTP, "400: too long: 9000"),
        (Script([(0, b'{"detail": "engine died"}')], status=500), ErrorKind.HTTP, "500: engine died"),
        (Script([(0, b"Bad Gateway")], status=502), ErrorKind.HTTP, "502: Bad Gateway"),
        (Script([(0, chunk("a")), (0, event({"error": {"message": "worker lost"}}))]), ErrorKind.SERVER, "worker lost"),
        (Script([(0, chunk("a")), (0.05, chunk("b"))], ending="cut"), ErrorKind.CUT, "after 2 chunks"),
        (Script([(0, chunk("a"))]), ErrorKind.CUT, "without a finish reason"),
        (Script(ending="cut"), ErrorKind.CUT, "before the first token"),
        (Script([(0, chunk("a"))], ending="hang"), ErrorKind.TIMEOUT, "1 s (after 1 chunks"),
        (Script(ending="hang"), ErrorKind.TIMEOUT, "before the first token"),
        (Script([(0, b"data: {nonsense\n\n")]), ErrorKind.MALFORMED, "nonsense"),
        (Script([(0, b"{}")], content_type="application/json"), ErrorKind.MALFORMED, "instead of an event stream"),
    ],
)
async def test_each_failure_is_a_record_with_its_kind(script: Script, kind: ErrorKind, message: str) -> None:
    record = await one(script, timeout_s=1.0)
    assert record.error_kind is kind
    assert message in (record.error or "")
    assert record.ttft_s == record.e2e_s == float("inf")


async def test_nobody_listening_is_a_failure_and_the_report_still_stands(free_port: int) -> None:
    result = await run(f"http://127.0.0.1:{free_port}", "m", items(3), Closed(2))
    assert {record.error_kind for record in result.records} == {ErrorKind.CONNECT}
    summary = summarise(result)
    assert (summary.succeeded, summary.failed, summary.error_rate) == (0, 3, 1.0)
    assert summary.ttft.p50 == float("inf")
    assert summary.ttft.mean is None
    assert (summary.output_tokens, summary.output_tokens_per_s) == (None, None)
    assert not summary.usable
    assert msgspec.json.decode(msgspec.json.encode(summary))["ttft"]["p50"] is None


async def test_an_answer_without_tokens_is_a_success_without_ttft() -> None:
    record = await one(Script([(0, chunk(finish="stop")), (0, final_usage(0) + DONE)]))
    assert record.ok
    assert (record.ttft_s, record.tpot_s, record.output_tokens) == (None, None, 0)
    assert summarise_one(record).ttft.p50 is None


async def test_many_at_once_all_reach_the_server() -> None:
    """No pool of connections may queue requests in the client."""
    script = Script([(0.5, chunk("a", finish="stop")), (0.5, DONE)])
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(150), Closed(150), Options(budget=LOOSE))
        assert server.open_most == 150
        result = await run(server.url, "m", items(150), Constant(600.0), Options(budget=LOOSE))
        assert server.open_most == 150
    assert all(record.ok and record.connect_s is not None for record in result.records)


async def test_a_low_file_limit_is_an_error_and_not_slow_results(free_port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        with pytest.raises(UsageError, match=r"300 requests.*may open 128.*ulimit -n"):
            await run(f"http://127.0.0.1:{free_port}", "m", items(300), Closed(300))
        with pytest.raises(UsageError, match="file descriptors"):
            await run(f"http://127.0.0.1:{free_port}", "m", items(300), Poisson(400.0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_open_loop_sends_on_schedule_whatever_the_server_does() -> None:
    script = Script([(0.6, chunk("a", finish="stop")), (0.6, DONE)])
    arrivals = Poisson(40.0, seed=5)
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(20), arrivals, Options(budget=LOOSE))
    offsets = arrivals.offsets_s(20)
    scheduled = [record.scheduled_s for record in result.records]
    assert [at - scheduled[0] for at in scheduled] == pytest.approx([at - offsets[0] for at in offsets], abs=1e-6)
    assert [seen.body["messages"][0]["content"] for seen in server.seen] == [f"question {n}" for n in range(20)]
    assert all(0.0 <= record.lateness_s < SLACK_S for record in result.records)


async def test_a_blocked_event_loop_shows_as_lateness_and_voids_the_run() -> None:
    """Latency counts from the schedule, and the client takes the blame for its own delay."""
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])

    def block(progress: Progress) -> None:
        if progress.done == 1:
            time.sleep(0.4)

    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(10), Constant(50.0), on_progress=block)
    late = [record for record in result.records if record.lateness_s > 0.1]
    assert late
    assert all((record.ttft_s or 0.0) > record.lateness_s for record in late)
    assert result.client.lateness_p99_s is not None
    assert result.client.lateness_p99_s > 0.2
    assert result.void is not None
    assert "lateness p99" in result.void
    assert not summarise(result).usable


async def test_a_busy_client_voids_the_run() -> None:
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])

    def burn(_: Progress) -> None:
        ends = time.process_time() + 0.1
        while time.process_time() < ends:
            pass

    async with ScriptedServer(always(script)) as server:
        budget = Budget(lateness_p99_s=9.0, loop_lag_p99_s=9.0, cpu_share=0.02)
        result = await run(server.url, "m", items(6), Closed(1), Options(budget=budget), burn)
    assert result.void is not None
    assert "of a core" in result.void


async def test_the_deadline_ends_the_run_and_says_what_was_left() -> None:
    script = Script([(0.2, chunk("a")), (5.0, DONE)])
    async with ScriptedServer(always(script)) as server:
        began = time.monotonic()
        result = await run(server.url, "m", items(50), Constant(20.0), Options(deadline_s=0.5, budget=LOOSE))
        assert time.monotonic() - began < 4.0
        closed = await run(server.url, "m", items(50), Closed(3), Options(deadline_s=0.3, budget=LOOSE))
    assert len(result.records) == 10
    assert result.unscheduled == 40
    assert {record.error_kind for record in result.records} == {ErrorKind.DEADLINE}
    assert (len(closed.records), closed.unscheduled) == (3, 47)


async def test_cancelling_leaves_no_task_and_no_connection() -> None:
    async with ScriptedServer(always(Script(ending="hang"))) as server:
        before = asyncio.all_tasks()
        task = asyncio.create_task(run(server.url, "m", items(8), Closed(8)))
        while server.open_now < 8:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ours = {"_serve"}
        left = [other for other in asyncio.all_tasks() - before if other.get_coro().__name__ not in ours]  # type: ignore[union-attr]
        assert left == []


async def test_closed_loop_keeps_its_concurrency_and_order() -> None:
    script = Script([(0.02, chunk("a", finish="stop")), (0.02, DONE)])
    progress: list[Progress] = []
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(12), Closed(3), Options(budget=LOOSE), progress.append)
    assert server.open_most == 3
    assert [record.item_id for record in result.records] == [f"i{n}" for n in range(12)]
    assert [step.done for step in progress] == list(range(1, 13))
    assert summarise(result).little_gap == pytest.approx(0.0, abs=0.05)


async def test_connections_are_used_again() -> None:
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(10), Closed(1), Options(server_record=False))
    assert server.connections == 1
    assert [record.connect_s for record in result.records][1:] == [0.0] * 9


async def test_a_netgain_server_is_asked_for_its_own_account() -> None:
    def script(seen: Seen) -> Script:
        block = RequestRecord(
            request_id="r1",
            choice=0,
            model="m",
            received_s=seen.at_s,
            first_token_s=seen.at_s + 0.05,
            finished_s=seen.at_s + 0.1,
            finish_reason="stop",
            prompt_tokens=7,
            cached_tokens=0,
            output_tokens=1,
            preemptions=0,
            stages={Stage.PREFILL: 0.05, Stage.DECODE: 0.05},
            ttft_stages={Stage.PREFILL: 0.05},
            drafts=DraftCounts(),
            output_ids=(42,),
        )
        end = final_usage(1, netgain=json.loads(msgspec.json.encode(block)))
        return Script([(0.05, chunk("a")), (0.1, chunk(finish="stop")), (0.1, end + DONE)])

    async with ScriptedServer(script, owner="netgain") as server:
        options = Options(budget=LOOSE, server_tokens=True, speculate=False)
        result = await run(server.url, "m", items(), Closed(1), options)
    assert result.netgain_server
    assert server.seen[0].body["netgain"] == {"record": True, "tokens": True, "speculate": False}
    record = result.records[0]
    assert record.server is not None
    assert record.server.output_ids == (42,)
    assert record.server.stages == {Stage.PREFILL: 0.05, Stage.DECODE: 0.05}
    stages = record.client_stages()
    assert stages is not None
    assert sum(stages.values()) == pytest.approx(record.e2e_s)
    assert stages[ClientStage.SERVER] == pytest.approx(0.1)
    assert 0.0 <= stages[ClientStage.NETWORK] < SLACK_S


@pytest.mark.parametrize("owner", ["somebody", None])
async def test_another_server_gets_no_unknown_field(owner: str | None) -> None:
    script = Script([(0.0, chunk("a", finish="stop") + DONE)])
    async with ScriptedServer(always(script), owner=owner) as server:
        options = Options(budget=LOOSE, running_usage=False, speculate=False)
        result = await run(server.url, "m", items(), Closed(1), options)
    assert not result.netgain_server
    assert "netgain" not in server.seen[0].body
    assert server.seen[0].body["stream_options"] == {"include_usage": True}
    assert result.records[0].client_stages() is None


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
async def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="write it as http"):
        await run(url, "m", items(), Closed(1))


async def test_nothing_to_run_is_refused() -> None:
    with pytest.raises(UsageError, match="no items"):
        await run("http://127.0.0.1:1", "m", [], Closed(1))


def summarise_one(record: ClientRecord) -> Summary:
    load = ClientLoad(lateness_p99_s=0.0, loop_lag_p99_s=0.0, wall_s=1.0, cpu_s=0.0, cpu_share=0.0, in_flight_mean=None)
    return summarise(
        Run(
            records=(record,),
            arrivals=Closed(1),
            started_s=record.scheduled_s,
            finished_s=record.finished_s,
            unscheduled=0,
            client=load,
            void=None,
            netgain_server=False,
        )
    )

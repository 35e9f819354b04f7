"""A whole run: schedule, limits, the client's own load, and what the server is asked for."""

import asyncio
import json
import resource
import time

import msgspec
import pytest

from netgain.errors import UsageError
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import ClientStage, Stage
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.options import Budget, Options
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.client.run import Progress, Stop, run
from netgain.measuring.client.summary import summarise
from netgain.measuring.workload.arrivals import Closed, Constant, Poisson
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, Seen, chunk, final_usage
from tests.measuring.timing import LOOSE, SLACK_S, always, items


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


async def test_a_closed_loop_does_not_hammer_a_port_where_nobody_listens(free_port: int) -> None:
    extent = Extent(send_for_s=1.2)
    options = Options(budget=LOOSE, server_record=False)
    result = await run(f"http://127.0.0.1:{free_port}", "m", items(3), Closed(2), options, extent=extent)
    assert 2 <= len(result.records) <= 30


@pytest.mark.parametrize(
    ("arrivals", "extent"),
    [
        (Constant(1e9), Extent(send_for_s=100.0)),
        (Poisson(1.0), Extent(requests=10**12)),
        (Poisson(1.0), Extent(warm_up=10**12)),
    ],
)
async def test_a_schedule_that_no_memory_holds_is_refused(arrivals: Constant | Poisson, extent: Extent) -> None:
    with pytest.raises(UsageError, match="more than one run can plan"):
        await run("http://127.0.0.1:1", "m", items(), arrivals, Options(server_record=False), extent=extent)


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
    script = Script([(0.2, chunk("a")), (60.0, DONE)])
    async with ScriptedServer(always(script)) as server:
        began = time.monotonic()
        result = await run(server.url, "m", items(50), Constant(20.0), Options(deadline_s=0.5, budget=LOOSE))
        assert time.monotonic() - began < 30.0
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
    little = summarise(result).little
    assert little is not None
    assert little.deviation == pytest.approx(0.0, abs=0.15)


async def test_connections_are_used_again() -> None:
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(10), Closed(1), Options(server_record=False))
    assert server.connections == 1
    assert [record.connect_s for record in result.records][1:] == [0.0] * 9
    assert summarise(result).resent == 0


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_server_that_closes_behind_a_stream_without_saying_so_causes_no_failure(concurrency: int) -> None:
    """As llama.cpp's server does: the next request finds its connection closed, now or when it is on its way."""
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)], ending="leave")
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(12), Closed(concurrency), Options(server_record=False))
    assert [record.error for record in result.records] == [None] * 12
    assert server.connections == len(server.seen) == 12
    assert all(record.connect_s for record in result.records)


async def test_a_request_that_a_closed_connection_swallowed_is_sent_once_more_and_counted() -> None:
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)], ending="deaf")
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(4), Closed(1), Options(server_record=False))
    assert [record.error for record in result.records] == [None] * 4
    assert [record.resent for record in result.records] == [False, True, False, True]
    assert all(
        record.connect_s for record in result.records
    )  # none of the answers came over a connection that was reused
    assert summarise(result).resent == 2


async def test_a_second_loss_is_a_failure() -> None:
    """Each answer comes over a connection that has already swallowed the request before it."""
    lost: list[str] = []

    def script(seen: Seen) -> Script:
        lost.append(seen.path)
        if len(lost) == 1:
            return Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)], ending="deaf")
        return Script(ending="silent")

    async with ScriptedServer(script) as server:
        result = await run(server.url, "m", items(2), Closed(1), Options(server_record=False))
    first, second = result.records
    assert first.ok
    assert (second.error_kind, second.resent) == (ErrorKind.CUT, True)
    assert "before any answer" in (second.error or "")
    assert len(server.seen) == 2


@pytest.mark.parametrize("begun", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Ty", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_once_an_answer_has_begun_nothing_is_sent_again(begun: bytes) -> None:
    script = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)], ending="deaf", last_bytes=begun)
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(2), Closed(1), Options(server_record=False))
    assert [record.error_kind for record in result.records] == [None, ErrorKind.CUT]
    assert [record.resent for record in result.records] == [False, False]
    assert len(server.seen) == 1


async def test_a_request_lost_on_a_new_connection_is_not_sent_again() -> None:
    async with ScriptedServer(always(Script(ending="silent"))) as server:
        result = await run(server.url, "m", items(2), Closed(1), Options(server_record=False))
    assert [(record.error_kind, record.resent) for record in result.records] == [(ErrorKind.CUT, False)] * 2
    assert len(server.seen) == 2


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


async def test_warming_up_is_sent_and_does_not_count() -> None:
    script = Script([(0.02, chunk("a", finish="stop")), (0.02, DONE)])
    counting: list[int] = []
    async with ScriptedServer(always(script)) as server:
        result = await run(
            server.url,
            "m",
            items(4),
            Closed(3),
            Options(budget=LOOSE, salt="s"),
            extent=Extent(warm_up=3, requests=7),
            on_counting=lambda: counting.append(len(server.seen)),
        )
        salts = [seen.body["cache_salt"] for seen in server.seen]
    assert len(result.warm_up) == 3
    assert len(result.records) == 7
    assert [(record.item_id, record.turn) for record in result.records[:3]] == [("i3", 0), ("i0", 1), ("i1", 1)]
    assert salts == ["s-0"] * 4 + ["s-1"] * 4 + ["s-2"] * 2, "each turn of the items has a salt of its own"
    assert len(counting) == 1
    assert result.started_s == result.records[0].scheduled_s
    assert all(record.scheduled_s <= result.started_s for record in result.warm_up)
    assert result.started_s < result.steady_until_s <= result.finished_s


@pytest.mark.parametrize("arrivals", [Closed(2), Constant(50.0), Poisson(50.0)])
async def test_sending_ends_with_its_time(arrivals: Closed | Constant | Poisson) -> None:
    script = Script([(0.1, chunk("a", finish="stop")), (0.1, DONE)])
    async with ScriptedServer(always(script)) as server:
        extent = Extent(warm_up=2, send_for_s=0.5)
        result = await run(server.url, "m", items(3), arrivals, Options(budget=LOOSE), extent=extent)
    assert result.unscheduled == 0
    assert all(record.ok for record in result.records), "what was sent in time is waited for"
    assert len(result.records) >= 3, "items are gone through again"
    assert max(record.scheduled_s for record in result.records) - result.started_s <= 0.5
    assert result.steady_until_s - result.started_s <= 0.5 + SLACK_S


async def test_a_run_that_is_stopped_cancels_what_is_in_flight() -> None:
    script = Script([(0.01, chunk("a", finish="stop")), (0.01, DONE)])
    slow = Script([(30.0, chunk("a", finish="stop")), (30.0, DONE)])

    def stop(progress: Progress) -> None:
        if progress.done == 3:
            raise Stop

    async with ScriptedServer(lambda seen: slow if len(server.seen) % 2 == 0 else script) as server:
        began_s = time.monotonic()
        result = await run(server.url, "m", items(40), Constant(100.0), Options(budget=LOOSE), stop)
        assert time.monotonic() - began_s < 25.0
    assert result.stopped
    assert len(result.records) == 3

"""A whole measurement over a socket, against servers whose capacity and counts are known."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.measure import measure
from netgain.measuring.measurement.records import read_records
from netgain.measuring.measurement.result import Measurement, read_measurement
from netgain.measuring.workload.arrivals import Shape
from netgain.measuring.workload.item import Item
from netgain.measuring.workload.slo import parse_slo
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, Seen, chunk, final_usage
from tests.measuring.timing import LOOSE


class Told:
    """A narrator that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, text: str, steps: int | None = None) -> None:
        self.lines.append(text)

    def step(self, text: str = "") -> None:
        self.lines.append(text)

    def found(self, text: str) -> None:
        self.lines.append(text)


QUICK = Script(
    [(0.01, chunk("a", usage=1)), (0.03, chunk("b", usage=3, finish="stop")), (0.03, final_usage(3)), (0.03, DONE)]
)


class OneByOne:
    """A server that works on one request at a time, `service_s` each, so that its capacity is 1 / `service_s`."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self._free_s = 0.0

    def __call__(self, seen: Seen) -> Script:
        begins_s = max(seen.at_s, self._free_s)
        self._free_s = begins_s + self._service_s
        first_s = begins_s - seen.at_s + self._service_s / 2
        last_s = first_s + self._service_s / 2
        return Script([(first_s, chunk("a", usage=1)), (last_s, chunk("b", usage=2, finish="stop")), (last_s, DONE)])


def workload(path: Path, prompts: int) -> str:
    lines = [
        json.dumps({"id": f"p{n}", "category": "c", "max_tokens": 3, "prompt": f"question {n}"}) for n in range(prompts)
    ]
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return str(path / "prompts.jsonl")


def vllm_page(counts: list[int]) -> str:
    """Each look at it finds 60 tokens more."""
    counts.append(counts[-1] + 60)
    lines = ("# TYPE vllm:generation_tokens_total counter", f'vllm:generation_tokens_total{{engine="0"}} {counts[-1]}')
    return "\n".join((*lines, "# TYPE vllm:num_requests_running gauge", 'vllm:num_requests_running{engine="0"} 2', ""))


async def test_a_closed_loop_is_measured_and_written(tmp_path: Path) -> None:
    told = Told()
    counts = [0]
    async with ScriptedServer(lambda _: QUICK, pages={"/metrics": lambda: vllm_page(counts)}) as server:
        ask = Ask(url=f"{server.url}/v1", workload=workload(tmp_path, 20), concurrency=2, client=LOOSE)
        found = await measure(ask, tmp_path / "out", told)
        salts = [seen.body["cache_salt"] for seen in server.seen]
    assert any("about" in line for line in told.lines), "the time is said before"
    assert found.summary.requests == 20
    assert found.load.warm_up == 2
    assert found.summary.output_tokens == 60
    assert found.server.engine == "vllm"
    assert found.server_side is not None
    assert found.server_side.figures["output_tokens"].gained in (60, 120), "one or two looks after the first"
    assert len(set(salts)) == 4, "those of the probes, and one for each turn of the prompts"
    assert found.load.salted
    assert read_measurement(tmp_path / "out").summary.ttft.p50 == found.summary.ttft.p50
    rows = read_records(tmp_path / "out" / "records.parquet")
    assert [row.counted for row in rows] == [False] * 2 + [True] * 20
    assert [row.record.item_id for row in rows[-2:]] == ["p0", "p1"], "the prompts go round"
    assert [row.record.turn for row in rows[-2:]] == [1, 1]
    assert rows[2].record.scheduled_s == 0.0
    assert all(row.record.text == "" for row in rows), "no text unless asked for"
    assert len({row.record.text_sha256 for row in rows}) == 1, "but whether two answers are the same is known"
    assert rows[2].prompt_sha256 == Item(id="x", category="y", max_tokens=9, prompt="question 2").prompt_digest
    assert {row.max_tokens for row in rows} == {3}


async def test_an_open_loop_for_a_duration(tmp_path: Path) -> None:
    async with ScriptedServer(lambda _: QUICK) as server:
        shape: Shape = "constant"
        ask = Ask(
            url=server.url,
            workload=workload(tmp_path, 5),
            shape=shape,
            rate_per_s=40.0,
            duration_s=1.0,
            slo=parse_slo("ttft=2s"),
            client=LOOSE,
        )
        found = await measure(ask, tmp_path / "out", Told())
        assert all("cache_salt" not in seen.body for seen in server.seen), "an engine that is not known may refuse it"
    assert 40 <= found.summary.requests <= 41
    assert found.summary.requests_per_s == pytest.approx(40.0, rel=0.15)
    assert found.summary.attainment == 1.0
    assert found.prompts.sent_each is not None
    assert found.prompts.sent_each >= 8
    assert any("a prefix cache makes repeats cheaper" in caveat for caveat in found.caveats)
    assert any("No server metrics" in caveat for caveat in found.caveats)


async def test_a_server_that_refuses_extra_fields_is_measured_without_them(tmp_path: Path) -> None:
    def strict(seen: Seen) -> Script:
        if "continuous_usage_stats" in seen.body["stream_options"] or "cache_salt" in seen.body:
            return Script(
                [(0.0, b'{"error": {"message": "unknown field"}}')], status=400, content_type="application/json"
            )
        return QUICK

    counts = [0]
    async with ScriptedServer(strict, pages={"/metrics": lambda: vllm_page(counts)}) as server:
        found = await measure(
            Ask(url=server.url, workload=workload(tmp_path, 4), client=LOOSE), tmp_path / "out", Told()
        )
    assert found.summary.failed == 0
    assert not found.load.salted
    assert sum("refused" in caveat for caveat in found.caveats) == 2


async def test_the_search_finds_what_the_server_sustains(tmp_path: Path) -> None:
    """One request at a time, 10 ms each, so 100/s at most; the median wait stays below 145 ms up to more than 95/s (M/D/1), and
    what other work on the machine does to a few requests does not move it."""
    async with ScriptedServer(OneByOne(0.01)) as server:
        found = await searched(server.url, tmp_path, "ttft.p50=150ms,itl=400ms", start=40.0, budget_s=18.0)
    saturation = found.saturation
    assert saturation is not None
    assert saturation.low_per_s is not None
    assert saturation.high_per_s is not None
    assert 50.0 <= saturation.low_per_s < saturation.high_per_s <= 125.0
    assert f"{saturation.low_per_s:.3g} and {saturation.high_per_s:.3g} requests/s" in saturation.text
    assert any(window.early for window in saturation.windows), "hopeless windows are ended early"
    assert not any("The SLO" in caveat for caveat in found.caveats), "it bounds both the wait and the pace"
    assert found.load.rate_per_s == saturation.low_per_s
    rows = read_records(tmp_path / "out" / "records.parquet")
    assert {row.window for row in rows} == set(range(len(saturation.windows)))


async def test_an_slo_that_no_rate_meets_ends_the_search(tmp_path: Path) -> None:
    """Where requests hardly meet each other, still lower rates would show nothing new."""
    async with ScriptedServer(OneByOne(0.02)) as server:
        found = await searched(server.url, tmp_path, "ttft=1ms", start=40.0, budget_s=60.0)
    assert found.saturation is not None
    assert found.saturation.low_per_s is None
    assert "not bracketed" in found.saturation.text
    assert "too slow for a request alone" in found.saturation.text
    assert found.saturation.limit == "range"
    assert found.stopped == "ttft.p95=1ms was out of reach"
    assert "left out: the slow ones are missing" in " ".join(found.caveats)
    assert "bounds no pace of the tokens after the first" in " ".join(found.caveats)


async def test_a_server_that_hangs_under_load_does_not_hold_up_the_search(tmp_path: Path) -> None:
    """It answers single requests only: a window waits no longer than the budget, and says that it was cut."""

    def alone(seen: Seen) -> Script:
        return QUICK if server.open_now == 1 else Script(QUICK.steps[:1], ending="hang")

    began_s = time.monotonic()
    async with ScriptedServer(alone) as server:
        found = await searched(server.url, tmp_path, "ttft=5s,itl=5s", start=200.0, budget_s=3.0)
    assert time.monotonic() - began_s < 60.0
    assert found.saturation is not None
    assert found.saturation.limit == "budget"
    assert [window.met for window in found.saturation.windows][-1] in (None, False)


async def test_a_search_ends_with_the_server(tmp_path: Path) -> None:
    """It was killed under load: the rates below would all have failed, too, each after a minute's wait."""
    began_s = time.monotonic()
    async with ScriptedServer(lambda _: QUICK) as server:

        async def die() -> None:
            while len(server.seen) < 30:
                await asyncio.sleep(0.01)
            await server.__aexit__()

        dying = asyncio.create_task(die())
        found = await searched(server.url, tmp_path, "ttft=5s,itl=5s", start=20.0, budget_s=60.0)
        await dying
    assert time.monotonic() - began_s < 55.0
    assert found.saturation is not None
    assert found.saturation.limit == "server"
    assert "no longer answered a single request" in found.saturation.text
    assert len(found.saturation.windows) == 1


async def test_a_folder_that_cannot_be_written_is_refused_before_the_load(tmp_path: Path) -> None:
    async with ScriptedServer(lambda seen: QUICK) as server:
        ask = Ask(url=server.url, workload=workload(tmp_path, 30), client=LOOSE)
        with pytest.raises(UsageError, match=r"cannot write /proc/no-folder"):
            await measure(ask, Path("/proc/no-folder"), Told())
        assert len(server.seen) < 10, "no more than the probes"


async def test_an_interruption_leaves_what_was_measured(tmp_path: Path) -> None:
    slow = Script([(0.01, chunk("a", usage=1)), (5.0, DONE)])

    def some(seen: Seen) -> Script:
        return slow if seen.body["prompt"] == "question 4" else QUICK

    async with ScriptedServer(some) as server:
        ask = Ask(url=server.url, workload=workload(tmp_path, 6), concurrency=2, duration_s=60.0, client=LOOSE)
        task = asyncio.create_task(measure(ask, tmp_path / "out", Told()))
        while sum(seen.body["prompt"] == "question 5" for seen in server.seen) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        found = await task
    assert found.stopped == "interrupted"
    assert 1 <= found.unfinished <= 2
    assert found.summary.succeeded > 5
    assert "ended early (interrupted)" in found.caveats[0]
    assert found.summary.little is not None
    assert abs(found.summary.little.deviation) < 0.3, "what was in flight at the end is counted on both sides"
    assert read_measurement(tmp_path / "out").unfinished == found.unfinished


async def searched(url: str, tmp_path: Path, slo: str, start: float, budget_s: float = 9.0) -> Measurement:
    ask = Ask(
        url=url,
        workload=workload(tmp_path, 30),
        saturate=True,
        rate_per_s=start,
        slo=parse_slo(slo),
        budget_s=budget_s,
        precision=0.3,
        metrics="none",
        client=LOOSE,
    )
    return await measure(ask, tmp_path / "out", Told())


async def test_failures_are_said_first(tmp_path: Path) -> None:
    def sometimes(seen: Seen) -> Script:
        fails = seen.body["prompt"] == "question 3"
        return Script(status=500, content_type="application/json") if fails else QUICK

    async with ScriptedServer(sometimes) as server:
        found = await measure(
            Ask(url=server.url, workload=workload(tmp_path, 8), client=LOOSE), tmp_path / "out", Told()
        )
    assert found.summary.errors == {ErrorKind.HTTP: 1}
    assert "1 of 8 requests failed (1 http)" in found.caveats[0]


async def test_a_result_with_failures_can_be_read_again(tmp_path: Path) -> None:
    def script(seen: Seen) -> Script:  # two of twenty fail, so upper ends of intervals are infinite
        return Script(status=500) if seen.body["prompt"] in ("question 3", "question 9") else QUICK

    async with ScriptedServer(script) as server:
        ask = Ask(url=server.url, workload=workload(tmp_path, 20), client=LOOSE)
        found = await measure(ask, tmp_path / "out", Told())
    assert found.summary.failed == 2
    again = read_measurement(tmp_path / "out")
    assert again.summary.ttft.p50 == found.summary.ttft.p50


async def test_answers_without_a_token_are_said(tmp_path: Path) -> None:
    async with ScriptedServer(lambda _: Script([(0.0, DONE)])) as server:
        ask = Ask(url=server.url, workload=workload(tmp_path, 4), client=LOOSE)
        found = await measure(ask, tmp_path / "out", Told())
    assert any(said.startswith("4 of 4 requests were answered without a token") for said in found.caveats)


async def test_a_server_that_closes_connections_is_not_asked_over_old_ones(tmp_path: Path) -> None:
    """llama.cpp does: every second request in a row would go out twice."""
    leaving = Script(QUICK.steps, ending="deaf")
    async with ScriptedServer(lambda _: leaving) as server:
        found = await measure(
            Ask(url=server.url, workload=workload(tmp_path, 6), client=LOOSE), tmp_path / "out", Told()
        )
    assert (found.summary.succeeded, found.summary.resent) == (6, 0)
    assert any("opened one of its own" in caveat for caveat in found.caveats)


async def test_nothing_is_measured_where_nobody_answers(free_port: int, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        await measure(Ask(url=f"http://127.0.0.1:{free_port}"), tmp_path / "out", Told())
    async with ScriptedServer(lambda _: Script(status=503, content_type="text/plain")) as server:
        with pytest.raises(Unavailable, match="did not answer a first request: status 503"):
            await measure(Ask(url=server.url), tmp_path / "out", Told())
        with pytest.raises(UsageError, match="no model 'other'; it offers m"):
            await measure(Ask(url=server.url, model="other"), tmp_path / "out", Told())
    assert not (tmp_path / "out").exists()

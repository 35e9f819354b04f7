"""Watching a deployed service: the rule is answered by its own counters, and what cannot be told is never called fine."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import promql_parser
import psutil
import pytest
import yaml
from aiohttp import web

from netgain.cli.main import run
from netgain.deciding.experiment.rollback import Pace, Rollback, TailLimit
from netgain.deciding.guard.alert import alert_rules
from netgain.deciding.guard.rule import examine, exceeds, read, threshold_at
from netgain.deciding.guard.watch import Guard, State, metrics_url
from netgain.deciding.verdict.document import ArmFacts, Load, Subject, VerdictDocument
from netgain.deciding.verdict.quality import Quality
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.ledger.prometheus import Exporter
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.histogram import HistogramDelta
from netgain.measuring.observe.names import engine_of
from netgain.measuring.observe.window import observed
from tests.waiting import PATIENCE_S

RULE = Rollback(
    window_requests=10,
    window_tokens=160,
    paces=(Pace(in_flight=1.0, baseline_s=0.010, candidate_s=0.006, threshold_s=0.008),),
    tails=(TailLimit(metric="ttft", share=0.95, limit_s=0.3, basis="SLO"),),
    says="Go back when it is slow.",
)
DOCUMENT = VerdictDocument(
    created="2026-01-01T00:00:00+00:00",
    decision="adopt",
    finding="faster",
    void=False,
    headline="it pays",
    reasons=(),
    scope="within",
    technique=Subject(name="ngram", title="n-gram speculation"),
    load=Load(workload="edit"),
    metric="e2e",
    primary=None,
    confidence=0.95,
    minimum_effect=0.03,
    threshold=1.03,
    detectable=None,
    needed=None,
    quality=Quality(),
    arms=(ArmFacts(name="candidate", engine="netgain"),),
    rollback=RULE,
)


class Service:
    """A served netgain as its metrics show it: netgain's own exporter behind a web server that can be taken away."""

    def __init__(self) -> None:
        self.exporter = Exporter()
        self.up = True

    def serve(self, make_record, requests: int, token_s: float, prefill_s: float = 0.1) -> None:
        for _ in range(requests):
            record = make_record(prefill_s=prefill_s, token_s=token_s)
            self.exporter.request(record.server)
            for _ in range(record.output_tokens - 1):
                self.exporter.gap(token_s, 1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async def handle(_: web.Request) -> web.Response:
            return web.Response(body=self.exporter.render()) if self.up else web.Response(status=503)

        app = web.Application()
        app.router.add_get("/metrics", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def window_of(before: str, after: str, seconds: float = 100.0):
    found = observed([read_exposition(before, 0.0), read_exposition(after, seconds)])
    return read(found, engine_of(set(read_exposition(after, 0.0).families)))


def vllm(requests: int, decode_s: float, tokens: int, e2e_s: float, ttft: tuple[int, int]) -> str:
    """What vLLM 0.32 exposes after so many ended requests; `ttft`: how many at most 0.25 s, at most 0.5 s."""
    return f"""
# TYPE vllm:request_decode_time_seconds histogram
vllm:request_decode_time_seconds_bucket{{le="+Inf"}} {requests}
vllm:request_decode_time_seconds_sum {decode_s}
vllm:request_decode_time_seconds_count {requests}
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{{le="+Inf"}} {requests}
vllm:request_generation_tokens_sum {tokens}
vllm:request_generation_tokens_count {requests}
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {requests}
vllm:inter_token_latency_seconds_sum {99 * decode_s}
vllm:inter_token_latency_seconds_count {requests}
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {requests}
vllm:e2e_request_latency_seconds_sum {e2e_s}
vllm:e2e_request_latency_seconds_count {requests}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.25"}} {ttft[0]}
vllm:time_to_first_token_seconds_bucket{{le="0.5"}} {ttft[1]}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {requests}
vllm:time_to_first_token_seconds_sum 1
vllm:time_to_first_token_seconds_count {requests}
"""


EMPTY = vllm(0, 0.0, 0, 0.0, (0, 0))


def test_vllm_is_judged_by_decode_time_over_tokens_and_not_by_steps():
    """Its inter_token_latency counts a step of speculation once, however many tokens it commits."""
    reading = window_of(EMPTY, vllm(20, 20 * 16 * 0.006, 20 * 17, 80.0, (20, 20)))
    assert reading.pace_s == pytest.approx(0.006)
    assert reading.in_flight == pytest.approx(0.8), "80 request-seconds in 100 s"
    found = examine(RULE, reading)
    assert (found.state, found.threshold_s) == ("holds", 0.008)


def gaps(step_s: float, steps: int, drafts: int) -> str:
    """vLLM's histogram of so many steps, all in one bucket, and how many of them verified drafts."""
    within = "".join(
        f'vllm:inter_token_latency_seconds_bucket{{le="{le}"}} {steps if step_s <= le else 0}\n'
        for le in (0.05, 0.075, 0.1)
    )
    return f"""
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total {drafts}
# TYPE vllm:inter_token_latency_seconds histogram
{within}vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {steps}
vllm:inter_token_latency_seconds_sum {steps * step_s}
vllm:inter_token_latency_seconds_count {steps}
"""


def test_steps_of_vllm_that_commit_several_tokens_are_not_held_against_a_limit_per_token():
    """A client sees 90 ms for five tokens as 18 ms each; vLLM's histogram has one gap of 90 ms."""
    limit = TailLimit(metric="itl", share=0.99, limit_s=0.058, basis="baseline")
    rule = msgspec.structs.replace(RULE, tails=(limit,))
    requests = vllm(20, 20 * 16 * 0.006, 20 * 17, 80.0, (20, 20)).partition("# TYPE vllm:inter")[0]
    ended = """# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {0}
vllm:e2e_request_latency_seconds_sum {1}
vllm:e2e_request_latency_seconds_count {0}
"""
    empty = EMPTY.partition("# TYPE vllm:inter")[0] + ended.format(0, 0)
    told = requests + ended.format(20, 80.0)
    speculating = examine(rule, window_of(empty + gaps(0.09, 0, 0), told + gaps(0.09, 64, 64)))
    assert speculating.state == "holds"
    assert speculating.says[-1].startswith("p99 of itl is not watched: the engine counts a step once")
    plain = examine(rule, window_of(empty + gaps(0.09, 0, 0), told + gaps(0.09, 64, 0)))
    assert plain.state == "rollback", "without drafts a step is a token"


def test_an_alert_on_vllms_gaps_keeps_silent_while_drafts_are_verified():
    limit = TailLimit(metric="itl", share=0.99, limit_s=0.058, basis="baseline")
    document = msgspec.structs.replace(DOCUMENT, rollback=msgspec.structs.replace(RULE, tails=(limit,)))
    for engine, silent in (("vllm", True), ("netgain", False)):
        (tail,) = [
            one["expr"]
            for one in yaml.safe_load(alert_rules(document, engine))["groups"][0]["rules"]
            if one["alert"] == "NetgainRollbackTail"
        ]
        promql_parser.parse(tail)
        assert ("unless on (job, instance) sum by (job, instance) (increase(vllm:spec_decode" in tail) == silent


def test_a_pace_above_the_threshold_says_go_back():
    found = examine(RULE, window_of(EMPTY, vllm(20, 20 * 16 * 0.009, 20 * 17, 80.0, (20, 20))))
    assert found.state == "rollback"
    assert "9.00 ms per output token, the threshold is 8.00 ms" in found.says[0]


def test_a_slow_service_under_more_load_than_was_measured_cannot_be_told():
    reading = window_of(EMPTY, vllm(20, 20 * 16 * 0.009, 20 * 17, 900.0, (20, 20)))
    found = examine(RULE, reading)
    assert found.state == "cannot tell"
    assert "9.0 requests were in flight" in found.says[0]


def test_more_load_than_it_was_shown_to_pay_at_says_go_back():
    rule = msgspec.structs.replace(RULE, most_in_flight=5.6)
    found = examine(rule, window_of(EMPTY, vllm(20, 20 * 16 * 0.006, 20 * 17, 900.0, (20, 20))))
    assert found.state == "rollback"
    assert "9.0 requests were in flight on average" in found.says[0]


def test_a_tail_is_only_a_reason_where_a_bucket_proves_it():
    """The limit of 0.3 s lies between the bounds 0.25 and 0.5: only what lies above 0.5 is above it for certain."""
    slow = examine(RULE, window_of(EMPTY, vllm(20, 20 * 16 * 0.006, 20 * 17, 80.0, (0, 10))))
    assert slow.state == "rollback"
    assert "p95 of ttft is above 300 ms" in slow.says[0]
    unclear = examine(RULE, window_of(EMPTY, vllm(20, 20 * 16 * 0.006, 20 * 17, 80.0, (0, 20))))
    assert unclear.state == "holds"


def test_a_tail_without_a_bound_above_its_limit_is_unknown():
    tail = TailLimit(metric="ttft", share=0.95, limit_s=9.0, basis="")
    buckets = ((0.25, 5.0), (0.5, 10.0))
    assert exceeds(tail, HistogramDelta(count=10.0, sum=1.0, buckets=buckets)) is None
    assert exceeds(tail, None) is None


def test_between_measured_loads_the_threshold_lies_between():
    paces = tuple(
        Pace(in_flight=load, baseline_s=s, candidate_s=s, threshold_s=s) for load, s in ((1.0, 0.01), (4.0, 0.04))
    )
    rule = msgspec.structs.replace(RULE, paces=paces)
    assert [threshold_at(rule, load) for load in (0.5, 1.0, 2.0, 4.0, 9.0)] == pytest.approx(
        [0.01, 0.01, 0.02, 0.04, 0.04]
    )
    assert threshold_at(rule, None) == 0.04


def test_llama_cpp_is_judged_by_its_counters_and_windows_by_tokens():
    def text(seconds: float, tokens: int) -> str:
        return (
            f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {tokens}\n"
            "# TYPE llamacpp:tokens_predicted_seconds_total counter\n"
            f"llamacpp:tokens_predicted_seconds_total {seconds}\n"
        )

    reading = window_of(text(0.0, 0), text(1.8, 200))
    assert reading.requests is None
    assert reading.full(RULE)
    assert not window_of(text(0.0, 0), text(1.0, 100)).full(RULE)
    assert examine(RULE, reading).state == "rollback"


def test_a_tail_of_which_an_engine_has_no_histogram_is_said_to_be_not_watched():
    text = """# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {0}
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total {1}
"""
    snapshots = [read_exposition(text.format(*values), at) for at, values in ((0.0, (0, 0)), (9.0, (1000, 5.0)))]
    finding = examine(RULE, read(observed(snapshots), "llama.cpp"))
    assert finding.state == "holds"
    assert finding.says[-1] == "p95 of ttft is not watched: the service has no histogram of it"
    assert "# Not watched: p95 of ttft, of which llama.cpp has no histogram.\n" in alert_rules(DOCUMENT, "llama.cpp")
    assert "Not watched" not in alert_rules(DOCUMENT, "vllm")


def test_an_engine_without_the_metric_cannot_be_told():
    text = "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 1\n"
    found = examine(RULE, window_of(text, text))
    assert found.state == "cannot tell"
    assert "sglang:inter_token_latency_seconds_sum" in found.says[0]


async def test_windows_are_cut_by_what_the_counters_gained(make_record):
    service = Service()
    async with service.running() as url:
        guard = Guard(RULE, url)
        assert "a window begins" in (await guard.step()).says
        service.serve(make_record, 6, token_s=0.006)
        pending = await guard.step()
        assert pending.finding is None
        assert pending.says.startswith("6 of 10 requests")
        service.serve(make_record, 6, token_s=0.006)
        assert (await guard.step()).finding.state in ("holds", "cannot tell")
        service.serve(make_record, 12, token_s=0.02)
        slow = (await guard.step()).finding
        assert slow.pace_s == pytest.approx(0.02), "the window before is not in it"


async def test_a_service_that_does_not_answer_is_not_fine(make_record):
    service = Service()
    async with service.running() as url:
        guard = Guard(RULE, url)
        await guard.step()
        service.up = False
        gone = await guard.step()
        assert gone.finding is None
        assert gone.says.startswith("cannot tell")
        assert "503" in gone.says
        service.up = True
        service.serve(make_record, 12, token_s=0.006)
        assert (await guard.step()).finding is not None, "the window goes on when it is back"
    assert "cannot tell" in (await guard.step()).says


async def test_a_restart_begins_a_new_window(make_record):
    service = Service()
    async with service.running() as url:
        guard = Guard(RULE, url)
        service.serve(make_record, 20, token_s=0.006)
        await guard.step()
        service.exporter = Exporter()
        service.serve(make_record, 12, token_s=0.006)
        again = await guard.step()
        assert again.finding is None
        assert "started again" in again.says
        service.serve(make_record, 12, token_s=0.02)
        assert (await guard.step()).finding.pace_s == pytest.approx(0.02)


async def test_for_cron_a_window_is_kept_between_runs(make_record, tmp_path):
    """Exit codes: 3 while the window fills, then 0 or 4; the load of a window of milliseconds is high, so the rule allows it."""
    rule = msgspec.structs.replace(RULE, paces=(msgspec.structs.replace(RULE.paces[0], in_flight=1e9),))
    (tmp_path / "verdict.json").write_bytes(to_json(msgspec.structs.replace(DOCUMENT, rollback=rule)))
    state, ran = tmp_path / "state.json", tmp_path / "ran"
    service = Service()
    async with service.running() as url:

        async def once(*more: str) -> int:
            return await asyncio.to_thread(run, ["guard", str(tmp_path), url, "--once", "--state", str(state), *more])

        assert await once() == 3
        assert msgspec.json.decode(state.read_bytes())["at_unix_s"] == pytest.approx(time.time(), abs=60.0)
        service.serve(make_record, 6, token_s=0.006)
        assert await once() == 3
        service.serve(make_record, 6, token_s=0.006)
        assert await once() == 0
        service.serve(make_record, 12, token_s=0.02)
        assert await once("--on-rollback", f"touch {ran}") == 4
        assert ran.exists()
    assert await once() == 3, "the service is gone"


async def test_watching_ends_with_the_command_when_the_rule_says_so(make_record, tmp_path, capsys):
    rule = msgspec.structs.replace(RULE, paces=(msgspec.structs.replace(RULE.paces[0], in_flight=1e9),))
    (tmp_path / "verdict.json").write_bytes(to_json(msgspec.structs.replace(DOCUMENT, rollback=rule)))
    service = Service()
    async with service.running() as url:
        command = ["guard", str(tmp_path), url, "--interval", "100ms", "--on-rollback", f"touch {tmp_path / 'ran'}"]
        watching = asyncio.create_task(asyncio.to_thread(run, command))
        while "a window begins" not in capsys.readouterr().out:
            await asyncio.sleep(0.02)
        service.serve(make_record, 12, token_s=0.02)
        assert await asyncio.wait_for(watching, PATIENCE_S) == 4
    assert (tmp_path / "ran").exists()


async def test_a_rollback_command_that_hangs_is_ended_with_what_it_started(make_record, tmp_path, capfd):
    rule = msgspec.structs.replace(RULE, paces=(msgspec.structs.replace(RULE.paces[0], in_flight=1e9),))
    (tmp_path / "verdict.json").write_bytes(to_json(msgspec.structs.replace(DOCUMENT, rollback=rule)))
    service = Service()
    hangs = f"echo $$ > {tmp_path / 'pid'}; sleep 600"
    async with service.running() as url:
        asked = ["--once", "--state", str(tmp_path / "state"), "--on-rollback", hangs, "--on-rollback-limit", "500ms"]
        assert await asyncio.to_thread(run, ["guard", str(tmp_path), url, *asked]) == 3
        service.serve(make_record, 12, token_s=0.02)
        assert await asyncio.wait_for(asyncio.to_thread(run, ["guard", str(tmp_path), url, *asked]), PATIENCE_S) == 4
    assert "took longer than 500ms and was ended" in capfd.readouterr().out
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_void_verdict_is_nothing_to_watch_by(tmp_path, capsys):
    (tmp_path / "verdict.json").write_bytes(
        to_json(msgspec.structs.replace(DOCUMENT, decision="inconclusive", void=True))
    )
    assert run(["guard", str(tmp_path), "http://x"]) == 2
    assert "proves nothing" in capsys.readouterr().err
    assert run(["guard", str(tmp_path), "--alert", "-"]) == 2


def test_wrong_usage_is_two(tmp_path, capsys):
    (tmp_path / "verdict.json").write_bytes(to_json(DOCUMENT))
    assert run(["guard", str(tmp_path)]) == 2
    assert "name the service" in capsys.readouterr().err
    assert run(["guard", str(tmp_path), "nowhere"]) == 2
    assert run(["guard", str(tmp_path / "none.json"), "http://x"]) == 2
    capsys.readouterr()
    for window in ("10 minutes", "10", "0m", ""):
        assert run(["guard", str(tmp_path), "--alert", "-", "--alert-window", window]) == 2
        assert "no duration of PromQL" in capsys.readouterr().err
    (tmp_path / "verdict.json").write_bytes(to_json(msgspec.structs.replace(DOCUMENT, rollback=None)))
    assert run(["guard", str(tmp_path), "http://x"]) == 2
    assert "no rule for going back" in capsys.readouterr().err


def test_the_url_may_be_of_service_api_or_metrics():
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/metrics"):
        assert metrics_url(url) == "http://h:1/metrics"
    for wrong in ("h:1", "http://[::1", "http://h:port"):
        with pytest.raises(UsageError, match="cannot be used"):
            metrics_url(wrong)


@pytest.mark.parametrize("engine", ["netgain", "vllm", "sglang", "llama.cpp"])
def test_the_rule_is_written_as_valid_prometheus_rules(engine, tmp_path):
    """Every expression is read by a PromQL parser; promtool checks the file where it is installed."""
    two = (*RULE.paces, Pace(in_flight=4.0, baseline_s=0.03, candidate_s=0.02, threshold_s=0.025))
    rule = msgspec.structs.replace(RULE, paces=two, most_in_flight=6.0)
    text = alert_rules(msgspec.structs.replace(DOCUMENT, rollback=rule), engine)
    (group,) = yaml.safe_load(text)["groups"]
    for one in group["rules"]:
        promql_parser.parse(one["expr"])
        assert set(one) <= {"alert", "expr", "for", "labels", "annotations"}
        assert "n-gram speculation" in one["annotations"]["verdict"]
    names = [one["alert"] for one in group["rules"]]
    assert names.count("NetgainRollbackPace") == 2, "one per load, each for the loads nearest to it"
    assert {"NetgainRollbackLoad", "NetgainGuardBlind"} <= set(names)
    assert ("NetgainRollbackTail" in names) == (engine != "llama.cpp")
    if promtool := shutil.which("promtool"):
        path = tmp_path / "rules.yml"
        path.write_text(text)
        subprocess.run([promtool, "check", "rules", str(path)], check=True, capture_output=True)


def test_the_alert_names_metrics_that_netgain_exposes():
    exposed = set(read_exposition(Exporter().render().decode(), 0.0).families)
    for name in ("netgain_itl_seconds", "netgain_e2e_seconds", "netgain_ttft_seconds"):
        assert name in exposed
        assert name in alert_rules(DOCUMENT, "netgain")


def test_the_alert_file_is_written_without_a_service(tmp_path, capsys):
    (tmp_path / "verdict.json").write_bytes(to_json(DOCUMENT))
    path = tmp_path / "rules.yml"
    assert run(["guard", str(tmp_path), "--alert", str(path)]) == 0
    assert yaml.safe_load(path.read_text())["groups"]
    assert run(["guard", str(tmp_path), "--alert", str(tmp_path / "no" / "rules.yml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_window_that_begins_in_the_future_is_not_gone_on_with(tmp_path):
    """The clock was set back between two runs of cron: a window of negative length would show any load."""
    state = State(url="http://h:1/metrics", at_unix_s=time.time() + 1000.0, text="# TYPE a gauge\na 1\n")
    for at_unix_s, kept in ((time.time() + 1000.0, False), (time.time() - 1000.0, True)):
        (tmp_path / "state").write_bytes(msgspec.json.encode(msgspec.structs.replace(state, at_unix_s=at_unix_s)))
        guard = Guard(RULE, "http://h:1")
        guard.restore(tmp_path / "state")
        guard.keep(tmp_path / "again")
        assert (tmp_path / "again").exists() is kept

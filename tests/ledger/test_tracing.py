"""Requests on their way to an OTLP receiver on a real socket, well or hurt."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.ledger.interval import Interval
from netgain.ledger.otlp import OtlpExport
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.runs import MOST_RUNS, runs
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import tile
from netgain.ledger.tracing import Exported, TracedChoice, TracedRequest, Tracing
from tests.ledger.otlp_receiver import Receiver, attributes_of
from tests.waiting import PATIENCE_S

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def _record(choice: int = 0, **fields: Any) -> RequestRecord:
    drafts = DraftCounts()
    drafts.add(4, 3)
    known: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "choice": choice,
        "model": "m",
        "received_s": 100.0,
        "first_token_s": 100.25,
        "finished_s": 101.0,
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "output_tokens": 30,
        "preemptions": 1,
        "stages": {Stage.DECODE: 0.7},
        "ttft_stages": None,
        "drafts": drafts,
        "own_s": 0.5,
    }
    return RequestRecord(**{**known, **fields})


def _steps(count: int) -> list[Interval]:
    """A prompt, then `count` steps of 10 ms with what lies between them, then a client that does not read for 0.1 s."""
    found = [Interval(Stage.TOKENISE, 100.0, 100.001), Interval(Stage.QUEUED, 100.001, 100.05)]
    found.append(Interval(Stage.PREFILL, 100.05, 100.25))
    at = 100.25
    for step in range(count):
        found.append(Interval(Stage.VERIFY if step % 3 == 0 else Stage.DECODE, at, at + 0.0098))
        found.append(Interval(Stage.RESPOND, at + 0.0098, at + 0.01))
        at += 0.01
    found.append(Interval(Stage.CLIENT_BLOCKED, at, at + 0.1))
    return found


def _request(*choices: TracedChoice, **fields: Any) -> TracedRequest:
    known: dict[str, Any] = {
        "request_id": "chatcmpl-1",
        "operation": "chat",
        "model": "m",
        "received_s": 100.0,
        "finished_s": 101.0,
        "choices": choices or (TracedChoice(_record(), _steps(60)),),
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "asked": {"gen_ai.request.max_tokens": 64, "gen_ai.request.stream": True},
    }
    return TracedRequest(**{**known, **fields})


def _sent(receiver: Receiver, *requests: TracedRequest, ratio: float = 1.0) -> list[Any]:
    export = OtlpExport(receiver.url, sample_ratio=ratio, resource={"service.name": "netgain-test"})
    tracing = Tracing(export, export.close)
    for request in requests:
        tracing.finished(request)
    tracing.close()
    return receiver.spans


def test_stage_spans_tile_the_server_span_on_the_wire(receiver: Receiver) -> None:
    before_ns = time.time_ns() - time.monotonic_ns()
    server, *stages = _sent(receiver, _request())
    assert receiver.paths == ["/v1/traces"]
    assert stages[0].start_time_unix_nano == server.start_time_unix_nano
    assert stages[-1].end_time_unix_nano == server.end_time_unix_nano
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(stages))
    assert {span.parent_span_id for span in stages} == {server.span_id}
    names = ["tokenise", "queued", "prefill", "decode", "respond", "client_blocked", "unattributed"]
    assert [span.name for span in stages] == names
    assert server.end_time_unix_nano - server.start_time_unix_nano == 1_000_000_000
    assert abs(server.start_time_unix_nano - (100_000_000_000 + before_ns)) < 50_000_000


def test_attributes_follow_the_conventions_and_the_ledger(receiver: Receiver) -> None:
    server, *stages = _sent(receiver, _request())
    said = attributes_of(server)
    assert server.name == "chat m"
    assert server.kind == 2, "SERVER"
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.usage.input_tokens"] == 12
    assert said["gen_ai.usage.output_tokens"] == 30
    assert said["gen_ai.usage.cache_read.input_tokens"] == 4
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.request.max_tokens"] == 64
    assert said["netgain.drafted_tokens"] == 4
    assert said["netgain.accepted_tokens"] == 3
    assert said["netgain.preemptions"] == 1
    assert said["netgain.own_s"] == 0.5
    assert "netgain.stall_s" not in said, "unknown is left out"
    assert [event.name for event in server.events] == ["netgain.first_token", "netgain.handoffs"]
    assert attributes_of(server.events[1])["netgain.handoff.wasted_tokens"] == 1
    merged = attributes_of(next(span for span in stages if span.name == "decode"))
    assert merged["netgain.merged.decode_count"] == 40
    assert merged["netgain.merged.verify_count"] == 20
    assert merged["netgain.merged.respond_s"] == pytest.approx(59 * 0.0002, abs=3e-4)
    names = {pair.key: pair.value.string_value for pair in receiver.resources[0].attributes}
    assert names["service.name"] == "netgain-test"


def test_each_of_several_choices_has_a_span_of_its_own(receiver: Receiver) -> None:
    pair = (TracedChoice(_record(0), _steps(10)), TracedChoice(_record(1, output_tokens=7), _steps(20)))
    spans = _sent(receiver, _request(*pair))
    server = spans[0]
    choices = [span for span in spans if span.name.startswith("choice ")]
    assert [span.parent_span_id for span in choices] == [server.span_id] * 2
    for choice in choices:
        below = [span for span in spans if span.parent_span_id == choice.span_id]
        assert below[0].start_time_unix_nano == choice.start_time_unix_nano
        assert below[-1].end_time_unix_nano == choice.end_time_unix_nano
    assert attributes_of(server)["gen_ai.usage.output_tokens"] == 37
    assert attributes_of(server)["gen_ai.usage.input_tokens"] == 12


def test_the_parent_is_the_callers_span(receiver: Receiver) -> None:
    server, *stages = _sent(receiver, _request(traceparent=(PARENT,), tracestate=("a=1", "b=2")))
    assert server.trace_id.hex() == PARENT[3:35]
    assert server.parent_span_id.hex() == PARENT[36:52]
    assert server.trace_state == "a=1,b=2"
    assert {span.trace_id for span in stages} == {server.trace_id}


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (PARENT, PARENT),
        ("",),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01",),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",),
        (PARENT.upper(),),
        ("ff" + PARENT[2:],),
        (PARENT + "-more",),
        (PARENT[:-1],),
        ("é" * 55,),
    ],
)
def test_a_malformed_context_is_ignored(headers: tuple[str, ...], receiver: Receiver) -> None:
    server, *_ = _sent(receiver, _request(traceparent=headers, tracestate=("a=1",)))
    assert server.parent_span_id == b""
    assert server.trace_id.hex() != PARENT[3:35]
    assert server.trace_state == ""


def test_a_later_version_of_the_context_is_read_as_far_as_it_is_known(receiver: Receiver) -> None:
    server, *_ = _sent(receiver, _request(traceparent=("cc" + PARENT[2:] + "-what-the-future-brings",)))
    assert server.trace_id.hex() == PARENT[3:35]


def test_a_malformed_tracestate_does_not_cost_the_parent(receiver: Receiver) -> None:
    server, *_ = _sent(receiver, _request(traceparent=(PARENT,), tracestate=("=;=,,",)))
    assert server.trace_id.hex() == PARENT[3:35]


def test_the_callers_sampled_flag_wins_over_the_ratio(receiver: Receiver) -> None:
    unsampled = _request(traceparent=(PARENT[:-2] + "00",), operation="no")
    sampled = _request(traceparent=(PARENT,), operation="yes")
    assert {span.name for span in _sent(receiver, unsampled, sampled, _request(operation="own"), ratio=0.0)} >= {
        "yes m"
    }
    assert not {span.name for span in receiver.spans} & {"no m", "own m"}


def test_over_grpc_the_same_spans_arrive() -> None:
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    got: list[Any] = []

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC names it
            got.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        export = OtlpExport(f"http://127.0.0.1:{port}", "grpc")
        tracing = Tracing(export, export.close)
        tracing.finished(_request())
        tracing.close()
    finally:
        server.stop(None).wait()
    assert [span.name for span in got][:2] == ["chat m", "tokenise"]
    assert tracing.counters()["traces_exported"] == 1


def test_a_receiver_that_is_down_costs_traces_and_nothing_else(free_port: int) -> None:
    export = OtlpExport(f"http://127.0.0.1:{free_port}", timeout_s=0.3)
    tracing = Tracing(export, export.close)
    for _ in range(10):
        tracing.finished(_request())
    tracing.close()
    assert tracing.counters() == {"traces_exported": 0, "traces_unsampled": 0, "traces_dropped": 10}


def test_a_receiver_that_answers_500_costs_traces_and_nothing_else() -> None:
    failing = Receiver(500)
    export = OtlpExport(failing.url, timeout_s=0.3)
    tracing = Tracing(export, export.close)
    tracing.finished(_request())
    tracing.close()
    failing.close()
    assert failing.paths
    assert tracing.counters()["traces_dropped"] == 1


def test_a_hanging_receiver_neither_blocks_nor_grows_memory(receiver: Receiver) -> None:
    receiver.hang.clear()
    export = OtlpExport(receiver.url, timeout_s=30.0)
    tracing = Tracing(export, export.close, queue_requests=8, flush_s=0.2)
    slowest_s = 0.0
    for _ in range(200):
        began_s = time.monotonic()
        tracing.finished(_request())
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    assert slowest_s < 15.0, "far below the 30 s that the receiver may take"
    assert tracing.counters()["traces_dropped"] >= 200 - 8 - 64
    began_s = time.monotonic()
    tracing.close()
    assert time.monotonic() - began_s < 15.0, "the wait for the last delivery is bounded"


def test_what_waits_at_the_end_is_delivered(receiver: Receiver) -> None:
    assert len([span for span in _sent(receiver, *[_request() for _ in range(150)]) if span.kind == 2]) == 150


def test_an_export_that_raises_is_counted_and_tried_again() -> None:
    answers: list[bool] = []

    def export(batch: Any) -> Exported:
        answers.append(True)
        if len(answers) == 1:
            raise ValueError("encoding failed")
        return Exported(0, True)

    tracing = Tracing(export)
    tracing.finished(_request())
    deadline = time.monotonic() + PATIENCE_S
    while not answers and time.monotonic() < deadline:
        time.sleep(0.01)
    tracing.finished(_request())
    tracing.close()
    assert tracing.counters() == {"traces_exported": 1, "traces_unsampled": 0, "traces_dropped": 1}


def test_a_request_that_cannot_be_put_together_costs_its_trace_alone() -> None:
    taken: list[Any] = []
    tracing = Tracing(lambda batch: Exported(0, bool(taken.extend(batch) or True)))

    def broken() -> TracedRequest:
        raise KeyError("a field that is not there")

    tracing.take(broken)
    tracing.take(_request)
    tracing.close()
    assert len(taken) == 1
    assert tracing.counters() == {"traces_exported": 1, "traces_unsampled": 0, "traces_dropped": 1}


@pytest.mark.parametrize("endpoint", ["localhost:4318", "", "ftp://x", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"tracing\.endpoint"):
        OtlpExport(endpoint)


_STAGES = st.sampled_from([stage for stage in Stage if stage is not Stage.UNATTRIBUTED])


@given(st.lists(st.tuples(_STAGES, st.floats(0, 10), st.floats(0, 0.5)), max_size=400))
def test_runs_are_bounded_and_tile_whatever_the_intervals(pieces: list[tuple[Stage, float, float]]) -> None:
    intervals = [Interval(stage, start, start + length) for stage, start, length in pieces]
    found = runs(intervals, 0.0, 10.0, most=16)
    assert 1 <= len(found) <= 16
    assert found[0].start_s == 0.0
    assert found[-1].end_s == 10.0
    assert all(a.end_s == b.start_s for a, b in pairwise(found))
    told: dict[Stage, float] = {}
    for run in found:
        for stage, seconds in run.seconds.items():
            told[stage] = told.get(stage, 0.0) + seconds
    assert told == pytest.approx(tile(intervals, 0.0, 10.0))


def test_a_long_answer_has_few_spans() -> None:
    assert len(runs(_steps(5000), 100.0, 151.0)) <= 7 < MOST_RUNS


def test_a_pause_ends_a_run() -> None:
    intervals = [
        Interval(Stage.DECODE, 0.0, 1.0),
        Interval(Stage.PREEMPTED, 1.0, 1.2),
        Interval(Stage.DECODE, 1.2, 2.0),
    ]
    assert [run.stage for run in runs(intervals, 0.0, 2.0)] == [Stage.DECODE, Stage.PREEMPTED, Stage.DECODE]

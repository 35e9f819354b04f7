"""A served request as spans in a real collector, and a collector that hangs."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from tests.ledger.otlp_receiver import Receiver, attributes_of
from tests.serving.api.conftest import Server
from tests.waiting import wait_for

HANG_S = 60.0
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def _options(options: list[str], receiver: Receiver) -> list[str]:
    return [*options, "--set", f"tracing.endpoint={receiver.url}", "--set", f"tracing.timeout_s={HANG_S}"]


def test_a_served_request_becomes_spans_below_its_callers(
    start_server: Callable[..., AbstractContextManager[Server]], server_options: list[str], receiver: Receiver
) -> None:
    with start_server(*_options(server_options, receiver)) as server:
        body = b'{"messages": [{"role": "user", "content": "l"}], "max_tokens": 40, "stream": true}'
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=x"}
        with urlopen(Request(server.url + "/v1/chat/completions", body, headers), timeout=30) as response:
            assert b"[DONE]" in response.read()
        assert server.ask(False, "s", n=2, max_tokens=4).status == 200
        assert server.ask(False, "s", max_tokens=4, model="other").status == 404
        assert server.stop() == 0  # what waits is delivered before the process ends
    chat = next(span for span in receiver.spans if span.name.startswith("chat "))
    assert (chat.trace_id.hex(), chat.parent_span_id.hex(), chat.trace_state) == (TRACE, SPAN, "vendor=x")
    said = attributes_of(chat)
    assert said["url.path"] == "/v1/chat/completions"
    assert said["gen_ai.usage.output_tokens"] == 40
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    assert said["gen_ai.request.stream"] is True
    stages = [span for span in receiver.spans if span.parent_span_id == chat.span_id]
    assert {"tokenise", "prefill", "decode"} <= {span.name for span in stages}
    assert stages[0].start_time_unix_nano == chat.start_time_unix_nano
    assert stages[-1].end_time_unix_nano == chat.end_time_unix_nano
    assert all(a.end_time_unix_nano == b.start_time_unix_nano for a, b in pairwise(stages))
    assert abs(chat.end_time_unix_nano / 1e9 - time.time()) < 60
    pair = next(span for span in receiver.spans if span.name.startswith("text_completion "))
    below = [span.name for span in receiver.spans if span.parent_span_id == pair.span_id]
    assert below == ["choice 0", "choice 1"]
    assert attributes_of(pair)["gen_ai.request.choice.count"] == 2


def test_a_hanging_collector_hurts_no_request_and_its_losses_show_in_metrics(
    start_server: Callable[..., AbstractContextManager[Server]], server_options: list[str], receiver: Receiver
) -> None:
    receiver.hang.clear()
    options = [*_options(server_options, receiver), "--set", "tracing.queue=2", "--set", "tracing.flush_s=0.2"]
    with start_server(*options) as server:
        assert server.ask(False, "s", max_tokens=4).status == 200
        wait_for(lambda: receiver.paths)  # the first is being delivered, and hangs
        for _ in range(6):
            assert server.ask(False, "s", max_tokens=4).status == 200
        assert server.metric("netgain_traces_dropped_total") == 4
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s < HANG_S / 2

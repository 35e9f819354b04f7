"""Frames survive any cutting of the stream, and a stream that is no sequence of frames is refused by name."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.ledger.interval import Interval
from netgain.ledger.records import DraftCounts, EngineTrace
from netgain.ledger.stage import Stage
from netgain.serving.engine.request import EngineStats, Grammar, Output, Request, SamplingParams, TokenLogprobs
from netgain.serving.runtime.messages import (
    Abort,
    Configure,
    Failed,
    FromEngine,
    Heartbeat,
    MeasureStepCost,
    Outputs,
    Ready,
    Refused,
    StepCostMeasured,
    Stop,
    Submit,
    ToEngine,
)
from netgain.serving.runtime.wire import FrameDecoder, WireError, encode

TRACE = EngineTrace(
    prompt_tokens=3,
    cached_tokens=1,
    output_tokens=2,
    preemptions=0,
    first_token_s=1.5,
    intervals=(Interval(Stage.QUEUED, 1.0, 1.25), Interval(Stage.PREFILL, 1.25, 1.5)),
    drafts=DraftCounts(steps=1, drafted=[1], accepted=[0], by_length={1: [1, 0]}),
)
TO_ENGINE: list[ToEngine] = [
    Configure(b"{}", 0.5),
    Submit(Request(id="a", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=4, seed=2**63 - 1), salt=b"\x00")),
    Submit(
        Request(
            id="b",
            prompt=(1,),
            sampling=SamplingParams(
                max_tokens=4,
                min_tokens=2,
                min_p=0.5,
                logit_bias=((1, -100.0), (2, 0.25)),
                logprobs=3,
                prompt_logprobs=0,
                grammar=Grammar(kind="json_schema", text='{"type": "object"}'),
            ),
            priority=-3,
            deadline_s=12.5,
        )
    ),
    Abort("a"),
    MeasureStepCost(7, 1.5, 16, False),
    Stop(),
]
FROM_ENGINE: list[FromEngine] = [
    Ready({"model": "m", "kv_tokens": 16, "note": None}),
    Outputs((Output(request_id="a", tokens=(5, 6), finish_reason="stop", trace=TRACE),), 2.0, (1.0, 1.1)),
    Outputs(
        (
            Output(
                request_id="a",
                tokens=(5,),
                logprobs=(TokenLogprobs(-0.5, ((5, -0.5), (1, float("-inf")))),),
                prompt_logprobs=(None, TokenLogprobs(-2.0)),
            ),
        ),
        2.0,
        None,
    ),
    Refused("a", "no", "prompt", overloaded=False),
    Heartbeat(EngineStats(running=1), {"steps": 3.0}, None),
    StepCostMeasured(7, None, "busy"),
    Failed("broken", usage=True),
]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=200))
def test_messages_arrive_whole_however_the_stream_is_cut(cuts):
    for kind, messages in ((ToEngine, TO_ENGINE), (FromEngine, FROM_ENGINE)):
        stream = b"".join(encode(message) for message in messages)
        decoder = FrameDecoder(kind)
        received = []
        at = 0
        while at < len(stream):
            size = cuts[at % len(cuts)]
            received += decoder.feed(stream[at : at + size])
            at += size
        decoder.finish()
        assert received == messages


def test_a_stream_that_ends_inside_a_frame_is_an_error():
    decoder = FrameDecoder(ToEngine)
    assert decoder.feed(encode(Abort("a"))[:-1]) == []
    with pytest.raises(WireError, match="ended inside a frame"):
        decoder.finish()


def test_an_oversized_frame_is_refused_before_its_bytes_come():
    decoder = FrameDecoder(ToEngine, max_frame_bytes=100)
    with pytest.raises(WireError, match="101 bytes was announced, the limit is 100"):
        decoder.feed(struct.pack(">I", 101))


def test_an_oversized_message_is_not_sent():
    with pytest.raises(WireError, match=r"Failed of .* exceeds the frame limit of 64"):
        encode(Failed("x" * 100), max_frame_bytes=64)


@pytest.mark.parametrize("payload", [b"\xc1", b"\x80", encode(Ready({}))[4:], b"\x81\xa4type\xa4Nope"])
def test_what_is_no_message_of_the_protocol_is_refused(payload):
    with pytest.raises(WireError, match="no message of this protocol"):
        FrameDecoder(ToEngine).feed(struct.pack(">I", len(payload)) + payload)

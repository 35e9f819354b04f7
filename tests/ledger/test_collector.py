"""The collector keeps the newest records, counts upwards only, and no listener or bad number stops the loop that feeds it."""

import logging
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.ledger.collector import Collector
from netgain.ledger.export import JsonlWriter
from netgain.ledger.records import DraftCounts, Handoff, HandoffKind, RequestRecord, StepRecord, StepShare
from netgain.ledger.stage import Stage

SHARE = StepShare(
    request_id="r",
    stage=Stage.VERIFY,
    prefill_tokens=0,
    decode_tokens=1,
    draft_tokens=3,
    committed_tokens=2,
    context_tokens=100,
    own_s=0.3,
    stall_s=0.7,
)
STEP = StepRecord(
    index=0,
    started_s=1.0,
    drafted_s=1.125,
    scheduled_s=1.375,
    ready_s=1.375,
    executed_s=1.875,
    finished_s=2.0,
    shares=(SHARE, SHARE),
    waiting=0,
    running=2,
    free_blocks=5,
)
HANDOFF = Handoff(
    kind=HandoffKind.DRAFT_VERIFY,
    source="draft",
    target="verify",
    at_s=1.0,
    bytes=12,
    used_tokens=2,
    wasted_tokens=1,
    waited_s=0.25,
    busy_s=0.25,
)
REQUEST = RequestRecord(
    request_id="r",
    choice=0,
    model="m",
    received_s=1.0,
    first_token_s=1.5,
    finished_s=2.0,
    finish_reason="stop",
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=3,
    preemptions=0,
    stages={Stage.PREFILL: 0.5, Stage.DECODE: 0.5},
    ttft_stages={Stage.PREFILL: 0.5},
    drafts=DraftCounts(),
)


def test_rings_keep_the_newest_records() -> None:
    collector = Collector(steps_kept=3, handoffs_kept=2, requests_kept=1)
    for index in range(10):
        collector.step(msgspec.structs.replace(STEP, index=index))
        collector.handoff(msgspec.structs.replace(HANDOFF, bytes=index))
        collector.request(msgspec.structs.replace(REQUEST, request_id=str(index)))
    assert [record.index for record in collector.steps] == [7, 8, 9]
    assert [record.bytes for record in collector.handoffs] == [8, 9]
    assert [record.request_id for record in collector.requests] == ["9"]


def test_counters_add_up_the_composition_of_steps_and_handoffs() -> None:
    collector = Collector()
    collector.step(STEP)
    collector.step(STEP)
    collector.handoff(HANDOFF)
    collector.handoff(msgspec.structs.replace(HANDOFF, failed=True, hidden_s=0.125))
    counters = collector.counters()
    assert counters["steps"] == 2
    assert (counters["step_decode_tokens"], counters["step_draft_tokens"], counters["step_prefill_tokens"]) == (
        4,
        12,
        0,
    )
    parts = ("step_draft_s", "step_schedule_s", "step_execute_s", "step_commit_s")
    assert [counters[part] for part in parts] == [0.25, 0.5, 1.0, 0.25]
    assert (counters["step_own_s"], counters["step_stall_s"]) == (pytest.approx(1.2), pytest.approx(2.8))
    assert counters["handoffs/draft_verify"] == 2
    assert counters["handoffs_failed/draft_verify"] == 1
    assert counters["handoff_bytes/draft_verify"] == 24
    assert counters["handoff_hidden_s/draft_verify"] == 0.125
    assert "handoffs/kv_transfer" not in counters


def test_each_listener_gets_each_record() -> None:
    seen: list[object] = []
    collector = Collector(on_step=[seen.append], on_handoff=[seen.append], on_request=[seen.append, seen.append])
    collector.step(STEP)
    collector.handoff(HANDOFF)
    collector.request(REQUEST)
    assert seen == [STEP, HANDOFF, REQUEST, REQUEST]


def test_a_full_disk_is_logged_once_and_counted_and_the_others_still_listen(caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    writer = JsonlWriter(full)
    seen: list[RequestRecord] = []
    collector = Collector(on_request=[writer.write, seen.append])
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            collector.request(REQUEST)
    writer.close()
    assert collector.listener_failures == 5
    assert collector.counters()["listener_failures"] == 5
    assert len(seen) == 5
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        msgspec.structs.replace(STEP, scheduled_s=0.5),
        msgspec.structs.replace(STEP, finished_s=float("nan")),
        msgspec.structs.replace(STEP, shares=(msgspec.structs.replace(SHARE, draft_tokens=-1),)),
        msgspec.structs.replace(STEP, shares=(msgspec.structs.replace(SHARE, stall_s=-0.1),)),
        msgspec.structs.replace(HANDOFF, bytes=-1),
        msgspec.structs.replace(HANDOFF, wasted_tokens=-1),
        msgspec.structs.replace(HANDOFF, busy_s=float("nan")),
        msgspec.structs.replace(HANDOFF, hidden_s=-1.0),
        msgspec.structs.replace(REQUEST, output_tokens=-1),
        msgspec.structs.replace(REQUEST, cached_tokens=11),
        msgspec.structs.replace(REQUEST, finished_s=1.25),
        msgspec.structs.replace(REQUEST, stages={Stage.DECODE: -1.0}),
        "no record at all",
    ],
)
def test_impossible_numbers_are_refused_and_counted(bad: object, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []
    collector = Collector(on_step=[seen.append], on_handoff=[seen.append], on_request=[seen.append])
    before = collector.counters()
    feed = {StepRecord: collector.step, Handoff: collector.handoff}.get(type(bad), collector.request)
    for _ in range(3):
        feed(bad)  # type: ignore[arg-type]
    assert collector.refused == 3
    assert collector.counters() == {**before, "records_refused": 3}
    assert seen == []
    assert [*collector.steps, *collector.handoffs, *collector.requests] == []
    assert len(caplog.records) == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 5), st.integers(-2, 5), st.floats(-1.0, 1.0)), max_size=20))
def test_counters_only_rise(numbers: list[tuple[int, int, float]]) -> None:
    collector = Collector()
    last = collector.counters()
    for tokens, amount, seconds in numbers:
        share = msgspec.structs.replace(SHARE, prefill_tokens=tokens, draft_tokens=amount, own_s=seconds)
        collector.step(msgspec.structs.replace(STEP, shares=(share,), drafted_s=1.125 + seconds))
        collector.handoff(msgspec.structs.replace(HANDOFF, bytes=amount, used_tokens=tokens, waited_s=seconds))
        now = collector.counters()
        assert all(now[name] >= value for name, value in last.items())
        last = now

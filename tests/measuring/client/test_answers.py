"""What counts as a token of an answer, when it came, and how an answer can fail."""

import pytest

from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, chunk, event, final_usage
from tests.measuring.timing import always, is_step, one, summarise_one, timed


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


async def test_an_answer_without_tokens_is_a_success_without_ttft() -> None:
    record = await one(Script([(0, chunk(finish="stop")), (0, final_usage(0) + DONE)]))
    assert record.ok
    assert (record.ttft_s, record.tpot_s, record.output_tokens) == (None, None, 0)
    assert summarise_one(record).ttft.p50 is None

"""Logs of vLLM, LiteLLM and OpenTelemetry, and public traces, as recordings; what does not fit is counted and said."""

import gzip
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from netgain.errors import UsageError
from netgain.measuring.record.entry import Entry
from netgain.measuring.record.importing import FORMATS, Imported, import_logs
from netgain.measuring.record.journal import read_recording
from netgain.measuring.record.summary import summarise

VLLM_WHOLE = """\
INFO 11-29 10:00:00 [api_server.py:1] Started server process
INFO 11-29 10:00:01 [logger.py:39] Received request chatcmpl-1: prompt: 'It\\'s "x", params: n=9', \
params: SamplingParams(n=1, presence_penalty=0.0, temperature=0.7, top_p=0.9, top_k=0, seed=None, stop=[], max_tokens=128), \
prompt_token_ids: [1, 2, 3], prompt_embeds shape: None, lora_request: None.
INFO 11-29 10:00:03 [logger.py:60] Generated response chatcmpl-1: output: 'hello', output_token_ids: [5, 6], finish_reason: stop
"""
VLLM_SPLIT = """\
(APIServer pid=1) DEBUG 11-29 10:00:01 [request_logger.py:50] Request cmpl-2-0 details: prompt: 'abc', \
prompt_token_ids: [7, 8], prompt_embeds shape: None.
(APIServer pid=1) INFO 11-29 10:00:01 [request_logger.py:57] Received request cmpl-2-0: \
params: SamplingParams(n=2, temperature=0.0, top_p=1.0, top_k=-1, seed=7, max_tokens=16), lora_request: None.
(APIServer pid=1) INFO 11-29 10:00:02 [r.py:9] Generated response cmpl-2-0 (streaming delta): output: 'a', \
output_token_ids: [1], finish_reason: None
(APIServer pid=1) INFO 11-29 10:00:04 [r.py:9] Generated response cmpl-2-0 (streaming delta): output: 'b', \
output_token_ids: [2, 3], finish_reason: length
(APIServer pid=1) INFO 11-29 10:00:04 [r.py:9] Generated response cmpl-2-0 (streaming complete): output: 'ab', \
output_token_ids: None, finish_reason: streaming_complete
(APIServer pid=1) INFO 11-29 10:00:05 [r.py:9] Received request cmpl-3-0: params: SamplingParams(max_tokens=4), \
lora_request: None.
"""


SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., tuple[Imported, list[Entry]]]:
    def run(kind: Any, content: str, **options: Any) -> tuple[Imported, list[Entry]]:
        log = tmp_path / "log"
        log.write_text(content)
        year = datetime(2025, 12, 1).timestamp()
        os.utime(log, (year, year))
        (tmp_path / "out").unlink(missing_ok=True)
        done = import_logs([log], kind, tmp_path / "out", **options)
        return done, [line for line in read_recording(tmp_path / "out") if isinstance(line, Entry)]

    return run


Run = Callable[..., tuple[Imported, list[Entry]]]


def test_vllm_lines_with_everything_in_one(imported: Run) -> None:
    done, (entry,) = imported("vllm", VLLM_WHOLE)
    assert done == Imported(1, {"a log line about something else": 1})
    assert entry.arrived_unix_s == datetime(2025, 11, 29, 10, 0, 1).timestamp()
    assert (entry.asked.n, entry.asked.max_tokens, entry.asked.temperature, entry.asked.top_p) == (1, 128, 0.7, 0.9)
    assert entry.asked.seeded is None
    assert (entry.prompt_tokens, entry.output_tokens, entry.finish_reasons) == (3, 2, ("stop",))
    assert (entry.endpoint, entry.ended_after_s) == ("/v1/chat/completions", 2.0)
    assert (entry.request, entry.answer) == (None, None)


def test_vllm_lines_split_by_level(imported: Run) -> None:
    done, entries = imported("vllm", VLLM_SPLIT, with_text=True)
    assert (done.requests, done.skipped) == (2, {})
    split, bare = entries
    assert (split.prompt_tokens, split.output_tokens, split.finish_reasons) == (2, 3, ("length",))
    assert (split.asked.n, split.asked.seeded) == (2, True)
    assert (split.first_token_after_s, split.ended_after_s) == (1.0, 3.0)
    assert (split.request, split.answer) == ({"prompt": "abc"}, "ab")
    assert (bare.prompt_tokens, bare.output_tokens, bare.blocks, bare.tokens_source) == (None, None, None, None)


@pytest.mark.parametrize("form", ["", "-colour", "-json"])
def test_lines_that_vllm_writes_today(form: str, imported: Run) -> None:
    """Written by vLLM 0.32's own request logger; texts hold what looks like fields, and some requests generate nothing."""
    lines = (SAMPLES / f"vllm-0.32{form}.txt").read_text()
    _, (chat, stream, embedding, tokenised) = imported("vllm", lines, with_text=True)
    assert (chat.prompt_tokens, chat.output_tokens, chat.finish_reasons) == (3, 2, ("stop",))
    assert (chat.asked.max_tokens, chat.asked.n, chat.asked.seeded) == (128, 1, True)
    assert chat.answer == "hello\nthere, finish_reason: length"
    assert chat.request == {"prompt": 'It\'s "x"\nline 2, prompt_token_ids: [9, 9]'}
    assert (stream.output_tokens, stream.finish_reasons, stream.asked.stream) == (3, ("length",), True)
    assert stream.arrived_unix_s is not None
    assert (embedding.endpoint, tokenised.endpoint) == ("/v1/embeddings", "/tokenize")
    assert (embedding.output_tokens, tokenised.output_tokens) == (None, None)


def test_a_vllm_log_over_new_year_keeps_its_order(imported: Run, tmp_path: Path) -> None:
    old, new = (
        VLLM_WHOLE.replace("11-29", day).replace("chatcmpl-1", name) for day, name in (("12-31", "b"), ("01-01", "a"))
    )
    log = tmp_path / "new-year"
    log.write_text(old + new)
    os.utime(log, (datetime(2026, 1, 2).timestamp(),) * 2)
    import_logs([log], "vllm", tmp_path / "o")
    entries = [line for line in read_recording(tmp_path / "o") if isinstance(line, Entry)]
    assert [entry.id for entry in entries] == ["b", "a"]
    assert entries[0].arrived_unix_s == datetime(2025, 12, 31, 10, 0, 1).timestamp()


def test_vllm_ids_of_clients_may_hold_colons_spaces_and_come_again(imported: Run) -> None:
    _, entries = imported("vllm", (VLLM_WHOLE * 2).replace("chatcmpl-1", "chatcmpl-trace: 7"))
    assert [(entry.id, entry.output_tokens) for entry in entries] == [("chatcmpl-trace: 7", 2)] * 2


def test_choices_of_one_vllm_request_are_added_up(imported: Run) -> None:
    *_, answer = VLLM_WHOLE.splitlines(keepends=True)
    _, (entry,) = imported("vllm", VLLM_WHOLE + answer)
    assert entry.output_tokens == 4


def test_lengths_that_vllm_cut_are_unknown(imported: Run) -> None:
    """`--max-log-len 40`: texts of 40 characters, lists of 40 ids."""
    cut = VLLM_WHOLE.replace("'It\\'s \"x\", params: n=9'", repr("x" * 40)).replace("[1, 2, 3]", str([1] * 40))
    _, (entry,) = imported("vllm", cut)
    assert (entry.prompt_tokens, entry.prompt_size, entry.output_tokens) == (None, None, 2)


def test_payloads_that_litellm_makes_today(imported: Run) -> None:
    """Made by LiteLLM 1.110's own code: text completions are logged twice and wrapped in messages; traces are single calls."""
    done, entries = imported("litellm", (SAMPLES / "litellm-1.110.jsonl").read_text(), with_text=True)
    assert done.skipped == {"the same call again": 1}
    chat, stream, failed, text, texts, embedding, responses, _, messages = entries
    assert (chat.endpoint, chat.output_tokens, chat.asked.tools, chat.session) == ("/v1/chat/completions", 2, 1, None)
    assert stream.first_token_after_s == pytest.approx(0.569, abs=0.01)
    assert (stream.cached_tokens, stream.finish_reasons) == (5, ("stop",))
    assert (failed.error, failed.prompt_tokens, failed.output_tokens) == ("BadRequestError, x", None, None)
    assert (text.endpoint, text.request["prompt"], text.prompt_size) == ("/v1/completions", "once upon", 9)
    assert (texts.prompts, embedding.prompts, embedding.endpoint) == (2, 2, "/v1/embeddings")
    assert (responses.endpoint, responses.finish_reasons, responses.answer) == ("/v1/responses", ("stop",), "hello")
    assert messages.endpoint == "/v1/messages"


def test_litellm_payloads_as_they_are_printed(imported: Run) -> None:
    payloads = [json.loads(line) for line in (SAMPLES / "litellm-1.110.jsonl").read_text().splitlines()]
    printed = "Give Feedback / Get Help\n".join(json.dumps(found, indent=4) + "\n" for found in payloads)
    done, _ = imported("litellm", printed)
    assert (done.requests, done.skipped) == (9, {"no JSON": 9, "the same call again": 1})


def test_hidden_messages_and_cached_answers_of_litellm_are_no_traffic(imported: Run) -> None:
    hidden = {"startTime": 1, "endTime": 2, "messages": [{"role": "user", "content": "redacted-by-litellm"}]}
    counts = {"prompt_tokens": 0, "completion_tokens": 0}  # what it writes where no usage came
    done, (entry,) = imported("litellm", "\n".join(map(json.dumps, [hidden | counts, hidden | {"cache_hit": True}])))
    assert done.skipped == {"answered from LiteLLM's own cache": 1}
    assert (entry.prompt_size, entry.prompt_tokens, entry.output_tokens, entry.tokens_source) == (
        None,
        None,
        None,
        None,
    )


def test_litellm_payloads(imported: Run) -> None:
    good = {
        "id": "a",
        "call_type": "acompletion",
        "stream": True,
        "startTime": 1000.5,
        "completionStartTime": 1000.9,
        "endTime": 1002.5,
        "model": "gpt",
        "prompt_tokens": 11,
        "completion_tokens": 5,
        "messages": [{"role": "user", "content": "private " * 100}],
        "model_parameters": {"max_tokens": 20, "temperature": 0.1},
        "metadata": {"user_api_key_hash": "k", "usage_object": {"prompt_tokens_details": {"cached_tokens": 8}}},
        "response": {"choices": [{"finish_reason": "stop", "message": {"content": "answer"}}]},
    }
    bad = {
        "id": "b",
        "startTime": "1970-01-01T00:16:39+00:00",
        "endTime": 1001,
        "status": "failure",
        "error_str": "he said: private",
        "error_information": {"error_class": "Timeout", "error_code": "408"},
    }
    lines = [json.dumps(good), json.dumps(bad), "{not json", json.dumps({"level": "info"}), json.dumps(7)]
    done, entries = imported("litellm", "\n".join(lines))
    assert done == Imported(2, {"no JSON": 1, "JSON without startTime and endTime": 2})
    failed, entry = entries
    assert (failed.error, failed.prompt_tokens, failed.arrived_unix_s) == ("Timeout, 408", None, 999.0)
    assert (entry.prompt_tokens, entry.output_tokens, entry.cached_tokens) == (11, 5, 8)
    assert entry.first_token_after_s == pytest.approx(0.4)
    assert entry.ended_after_s == pytest.approx(2.0)
    assert (entry.asked.stream, entry.asked.max_tokens, entry.finish_reasons) == (True, 20, ("stop",))
    assert entry.tenant not in (None, "k")
    assert entry.blocks
    assert entry.request is None


def test_litellm_array(imported: Run) -> None:
    done, _ = imported(
        "litellm", json.dumps([{"startTime": 1, "endTime": 2}, {"startTime": 3, "endTime": 4}], indent=1)
    )
    assert done == Imported(2, {})


def _span(name: str, span: str, parent: str = "", **attributes: Any) -> dict[str, Any]:
    def value(given: Any) -> dict[str, Any]:
        match given:
            case bool():
                return {"boolValue": given}
            case int():
                return {"intValue": str(given)}
            case float():
                return {"doubleValue": given}
            case list():
                return {"arrayValue": {"values": [value(item) for item in given]}}
        return {"stringValue": given}

    pairs = [{"key": key.replace("__", "."), "value": value(given)} for key, given in attributes.items()]
    stamps = {"startTimeUnixNano": "2000000000", "endTimeUnixNano": "3500000000"}
    return {"name": name, "traceId": "t", "spanId": span, "parentSpanId": parent, "attributes": pairs, **stamps}


def test_otlp_spans_of_the_genai_conventions(imported: Run) -> None:
    spans = [
        _span("GET /", "1"),
        _span(
            "chat m",
            "2",
            "1",
            gen_ai__operation__name="chat",
            gen_ai__request__model="m",
            gen_ai__usage__input_tokens=40,
            gen_ai__usage__output_tokens=7,
            gen_ai__request__max_tokens=64,
            gen_ai__request__temperature=0.5,
            gen_ai__response__finish_reasons=["stop"],
            gen_ai__conversation__id="private",
        ),
        _span("llm_request", "3", "2", gen_ai__request__id="x", gen_ai__usage__prompt_tokens=40),
        _span(
            "llm_request",
            "4",
            "9",
            gen_ai__request__id="y",
            gen_ai__usage__prompt_tokens=5,
            gen_ai__usage__completion_tokens=6,
            gen_ai__latency__time_to_first_token=0.25,
        ),
    ]
    line = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    done, entries = imported("otel", f"{line}\n{{}}\n")
    assert done.requests == 2
    assert done.skipped == {
        "a span without GenAI attributes": 1,
        "a span inside the span of the same call": 1,
        "JSON without resourceSpans": 1,
    }
    chat, older = entries
    assert (chat.endpoint, chat.prompt_tokens, chat.output_tokens, chat.ended_after_s) == (
        "/v1/chat/completions",
        40,
        7,
        1.5,
    )
    assert (chat.asked.max_tokens, chat.asked.temperature, chat.finish_reasons) == (64, 0.5, ("stop",))
    assert chat.session not in (None, "private")
    assert (older.prompt_tokens, older.output_tokens, older.first_token_after_s) == (5, 6, 0.25)
    whole, _ = imported("otel", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}, indent=2))
    assert whole.requests == 2


def test_public_traces_keep_their_hashes(imported: Run) -> None:
    """ai-dynamo/dynamo#12046: ids cut to 32 bits merged prefixes that were different."""
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [2**63 + 1, 2]},
        {"timestamp": 1500, "input_length": 600, "output_length": 9, "hash_ids": [2**63 + 1, 3]},
    ]
    done, entries = imported("mooncake", "\n".join(map(json.dumps, rows)) + "\nrubbish\n")
    assert done == Imported(2, {"no row of a Mooncake trace": 1})
    assert entries[0].blocks == (2**63 + 1, 2)
    assert entries[1].arrived_unix_s == 1.5


def test_public_traces_of_lengths(imported: Run) -> None:
    done, entries = imported(
        "azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\nx,1,2\n"
    )
    assert done == Imported(1, {"a row with a value that is no number or time": 1})
    assert (entries[0].prompt_tokens, entries[0].output_tokens) == (374, 44)
    done, entries = imported(
        "burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,10,0,10,API log\n"
    )
    assert (entries[0].model, entries[0].error) == ("GPT-4", "no tokens came back")


@pytest.mark.parametrize("kind", sorted(FORMATS))
@pytest.mark.parametrize("content", ["", "nothing of the kind\n", "\x00\x01", "[1, 2", "a,b\n1,2\n", "{}\n[]\n"])
def test_a_file_of_no_known_format_is_one_clear_error(kind: str, content: str, imported: Run) -> None:
    with pytest.raises(UsageError, match=f"holds no request in the format '{kind}'"):
        imported(kind, content)


def test_the_wrong_format_is_told_together_with_the_right_one(imported: Run) -> None:
    with pytest.raises(UsageError, match="use --format vllm"):
        imported("litellm", VLLM_WHOLE)


@pytest.mark.shared_data
def test_the_mooncake_trace_has_its_published_hit_rate(shared_data: Path, tmp_path: Path) -> None:
    trace = shared_data / "traces/mooncake_conversation.jsonl"
    assert import_logs([trace], "mooncake", tmp_path / "out").requests == 12_031
    found = summarise(read_recording(tmp_path / "out"))
    assert found.reuse[-1].hit_rate == pytest.approx(0.366, abs=0.005)
    assert found.prompt_tokens is not None


def test_packed_logs_are_read_as_they_are(tmp_path: Path) -> None:
    data = gzip.compress(VLLM_WHOLE.encode())
    (tmp_path / "log.gz").write_bytes(data)
    assert import_logs([tmp_path / "log.gz"], "vllm", tmp_path / "out").requests == 1
    (tmp_path / "cut.gz").write_bytes(data[:-20])
    with pytest.raises(UsageError, match="packed and damaged"):
        import_logs([tmp_path / "cut.gz"], "vllm", tmp_path / "out2")


def test_lengths_below_nothing_are_no_rows(imported: Run) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}\n'
    done, _ = imported("mooncake", good + good.replace('"output_length": 1', '"output_length": -1'))
    assert done.requests == 1
    done, _ = imported(
        "azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n2023-11-16 18:15:46,-3,4\n"
    )
    assert done.requests == 1

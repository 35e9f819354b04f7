"""What each sampling field does to an answer, seen by a client."""

import json

import pytest

BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])


def text_of(answer, chat):
    choice = answer.json["choices"][0]
    return choice["message"]["content"] if chat else choice["text"]


@BOTH
def test_logit_bias_forces_and_forbids_tokens(server, chain_model, chat):
    la, lo = (chain_model.spelled[piece] for piece in ("la ", "lo "))
    assert text_of(server.ask(chat, "l", max_tokens=3, logit_bias={str(lo): 100}), chat) == "lo lo lo "
    assert "la" not in text_of(server.ask(chat, "l", max_tokens=3, logit_bias={str(la): -100}), chat)
    answer = server.ask(chat, "l", logit_bias={"384": 1})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "logit_bias"


@BOTH
@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 2}, {"frequency_penalty": 2}, {"presence_penalty": 2}], ids=str
)
def test_penalties_break_a_loop(server, chat, penalty):
    runner_up = {"logit_bias": {"65": 18.5}}  # the loop's own tokens have 19.6
    assert text_of(server.ask(chat, "l", max_tokens=9, **runner_up), chat) == "la lo lu " * 3
    assert text_of(server.ask(chat, "l", max_tokens=4, **runner_up, **penalty), chat)[:9] == "la lo lu "
    assert text_of(server.ask(chat, "l", max_tokens=4, **runner_up, **penalty), chat)[9:] not in ("", "la ")


@BOTH
def test_min_tokens_puts_the_end_off(server, chat):
    answer = server.ask(chat, "s", min_tokens=8, max_tokens=10)
    assert answer.json["usage"]["completion_tokens"] >= 8
    assert text_of(answer, chat).startswith("short answer")
    stopped = server.ask(chat, "l", stop="lu ", min_tokens=5, max_tokens=20).json
    assert stopped["usage"]["completion_tokens"] == 6
    assert server.ask(chat, "s", min_tokens=11, max_tokens=10).json["error"]["param"] == "min_tokens"


@BOTH
def test_a_stop_string_may_be_part_of_the_answer(server, chat):
    whole = server.ask(chat, "c", stop="een la", include_stop_str_in_output=True)
    assert text_of(whole, chat) == "one green la"
    assert whole.json["choices"][0]["stop_reason"] == "een la"


def test_control_tokens_are_shown_when_asked_for(server, chain_model):
    bias = {"logit_bias": {"256": 100}, "max_tokens": 2}
    assert server.ask(False, "s", **bias).json["choices"][0]["text"] == ""
    assert server.ask(False, "s", skip_special_tokens=False, **bias).json["choices"][0]["text"] == "<|im_start|>" * 2


def test_completions_may_make_no_token_at_all(server):
    """EricLBuehler/mistral.rs#1539."""
    for stream in (False, True):
        answer = server.ask(False, "s", max_tokens=0, stream=stream)
        choice = answer.chunks[-1]["choices"][0] if stream else answer.json["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert server.ask(False, "s", max_tokens=0).json["usage"]["completion_tokens"] == 0
    assert server.ask(True, "s", max_tokens=0).status == 400


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": value} for value in (0, 1e-12, 1e-5, 1e-4)),
        *({"temperature": 1, "top_k": value} for value in (0, -1, 1, 384, 385, 10**7)),
        *({"temperature": 1, "top_p": value} for value in (0, 1e-9, 1)),
        *({"temperature": 1, "min_p": value} for value in (0, 1)),
    ],
    ids=str,
)
def test_legal_extremes_keep_at_least_one_token(server, fields):
    """vllm-project/vllm#2937, torch-spyre/sendnn-inference#542."""
    answer = server.ask(False, "s", **fields, seed=1)
    assert answer.status == 200
    assert answer.json["choices"][0]["text"].startswith("short ")


def test_every_choice_of_an_answer_has_its_record(server):
    for chat in (False, True):
        options = {"netgain": {"record": True, "tokens": True}, "n": 3}
        whole = server.ask(chat, "s", **options).json
        streamed = server.ask(chat, "s", stream=True, **options).chunks[-1]
        for records in (whole["netgain"], streamed["netgain"]):
            assert [record["choice"] for record in records] == [0, 1, 2]
            assert all(record["output_tokens"] == 3 == len(record["output_ids"]) for record in records)
            assert all(sum(record["stages"].values()) > 0 for record in records)
            assert all(record["drafts"]["steps"] == 0 for record in records)


@BOTH
def test_a_request_that_takes_too_long_ends_with_an_error(server, chat):
    answer = server.ask(chat, "l", max_tokens=4000, timeout_s=0.3)
    assert answer.status == 408
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json["error"]["code"] == "deadline_exceeded"
    events = server.ask(chat, "l", max_tokens=4000, timeout_s=1.0, stream=True).events
    assert 2 < len(events) < 4000
    assert '"deadline_exceeded"' in events[-1]  # and no [DONE]
    assert server.ask(chat, "s", timeout_s=20).status == 200


@pytest.mark.parametrize(("header", "status"), [("0.2", 408), ("20", 200), ("soon", 400), ("0", 400), ("nan", 400)])
def test_a_header_may_say_how_long_a_request_has(server, header, status):
    data = json.dumps({"prompt": "l", "max_tokens": 4000 if status == 408 else 1}).encode()
    assert server.send("/v1/completions", data, headers={"x-request-timeout-s": header}).status == status


def test_priority_is_taken(server):
    assert server.ask(False, "s", priority=-5).status == 200

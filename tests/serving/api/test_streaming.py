"""Streams and whole answers say the same, never cut a character, and never show any part of a stop string."""

import json
from typing import Any

import pytest

BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])


def joined(chunks: list[Any], chat: bool) -> str:
    parts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.append((choice["delta"].get("content") or "") if chat else choice["text"])
    return "".join(parts)


def reason(chunks: list[Any]) -> str:
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(reasons) == 1
    return str(reasons[0])


def text_of(answer: Any, chat: bool) -> str:
    choice = answer["choices"][0]
    return str(choice["message"]["content"] if chat else choice["text"])


@BOTH
@pytest.mark.parametrize("start", list("abcde"))
def test_no_part_of_a_stop_string_is_sent_wherever_tokens_cut_it(server, chat, start):
    whole = server.ask(chat, start, stop="een la").json
    chunks = server.ask(chat, start, stop="een la", stream=True).chunks
    assert text_of(whole, chat) == joined(chunks, chat) == "one gr"
    assert whole["choices"][0]["finish_reason"] == reason(chunks) == "stop"


@BOTH
def test_a_near_miss_is_released_complete(server, chat):
    whole = server.ask(chat, "n", stop=["een la"]).json
    chunks = server.ask(chat, "n", stop=["een la"], stream=True).chunks
    assert text_of(whole, chat) == joined(chunks, chat) == "one green left over"
    assert whole["choices"][0]["finish_reason"] == reason(chunks) == "stop"  # the end token


@BOTH
def test_a_character_is_sent_whole_or_not_at_all(server, chat):
    chunks = server.ask(chat, "u", stream=True).chunks
    pieces = [joined([chunk], chat) for chunk in chunks]
    assert [piece for piece in pieces if piece] == list("ď가龜🫠")
    assert text_of(server.ask(chat, "u").json, chat) == "ď가龜🫠"


@BOTH
def test_bytes_that_are_no_character_become_one_mark(server, chat):
    assert joined(server.ask(chat, "v", stream=True).chunks, chat) == "\ufffd then text"
    assert text_of(server.ask(chat, "v").json, chat) == "\ufffd then text"


@BOTH
def test_a_character_cut_by_the_length_leaves_one_mark_at_the_end(server, chat):
    for limit, text in ((1, "\ufffd"), (2, "ď"), (3, "ď\ufffd"), (4, "ď\ufffd")):
        assert joined(server.ask(chat, "u", max_tokens=limit, stream=True).chunks, chat) == text
        assert text_of(server.ask(chat, "u", max_tokens=limit).json, chat) == text


@BOTH
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_exactly_max_tokens_are_made_and_counted(server, chat, limit):
    whole = server.ask(chat, "l", max_tokens=limit, ignore_eos=True).json
    assert whole["usage"]["completion_tokens"] == limit
    assert whole["choices"][0]["finish_reason"] == "length"
    assert text_of(whole, chat) == "".join(("la ", "lo ", "lu ")[at % 3] for at in range(limit))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.ask(chat, "l", max_tokens=limit, stream=True, stream_options=options).chunks
    running = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert running[int(chat) :] == list(range(1, limit + 1))
    assert running[: int(chat)] == [0] * int(chat)  # the role comes before the first token
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == limit
    assert reason(chunks) == "length"


def test_usage_tells_how_much_of_the_prompt_was_cached(server):
    prompt = "a prompt that fills several blocks of sixteen tokens, one per byte: s"
    first = server.ask(False, prompt).json["usage"]
    again = server.ask(False, prompt).json["usage"]
    assert first["prompt_tokens"] == len(prompt)
    assert first["total_tokens"] == first["prompt_tokens"] + first["completion_tokens"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] == len(prompt) // 16 * 16


def test_another_cache_salt_finds_nothing_of_the_same_prompt(server):
    prompt = "a prompt asked under different salts, one token per byte of text: s"

    def cached(**body):
        return server.ask(False, prompt, **body).json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="two") == 0
    assert cached() == 0
    assert cached(cache_salt="one") == len(prompt) // 16 * 16


def test_a_stop_token_is_counted_but_not_shown(server, chain_model):
    stop = chain_model.spelled["answer"]
    answer = server.ask(False, "s", stop_token_ids=[stop]).json
    assert answer["choices"][0]["text"] == "short "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2


def test_without_usage_options_chunks_carry_text_only(server):
    chunks = server.ask(False, "s", stream=True).chunks
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


def test_several_prompts_and_choices_come_back_in_their_places(server):
    answer = server.post("/v1/completions", prompt=["s", "n"], n=2, temperature=0, max_tokens=9).json
    texts = {choice["index"]: choice["text"] for choice in answer["choices"]}
    assert texts == {0: "short answer", 1: "short answer", 2: "one green left over", 3: "one green left over"}
    assert answer["usage"]["prompt_tokens"] == 2  # each prompt once
    assert answer["usage"]["completion_tokens"] == 2 * 3 + 2 * 4
    streamed: dict[int, str] = dict.fromkeys(range(4), "")
    for chunk in server.post(
        "/v1/completions", prompt=["s", "n"], n=2, temperature=0, max_tokens=9, stream=True
    ).chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_prompts_may_be_token_ids(server):
    assert server.post("/v1/completions", prompt=[ord("s") - ord("!")], temperature=0).status == 200
    answer = server.post("/v1/completions", prompt=[[65, 66], [67]], temperature=0, max_tokens=1).json
    assert len(answer["choices"]) == 2


def test_the_record_comes_with_the_answer_when_asked_for(server):
    options = {"record": True, "tokens": True}
    whole = server.ask(False, "s", netgain=options).json["netgain"]
    assert (whole["prompt_tokens"], whole["output_tokens"]) == (1, 3)
    assert len(whole["prompt_ids"]) == 1
    assert len(whole["output_ids"]) == 3
    last = server.ask(False, "s", netgain={"record": True}, stream=True).chunks[-1]
    assert last["netgain"]["request_id"] == last["id"]
    assert last["netgain"]["output_ids"] is None
    assert "netgain" not in json.dumps(server.ask(False, "s").json)

"""Log-probabilities on both endpoints: one entry per counted token, the same in a stream as in a whole answer."""

import math

import pytest

PROMPT = "a prompt of more than sixteen tokens, one per byte: s"


def chat_entries(choices):
    return [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]


def text_lists(choices):
    lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            lists[name] += values
    return lists


def choices_of(chunks):
    return [choice for chunk in chunks for choice in chunk["choices"]]


def test_chat_gives_every_tokens_logprob_and_the_most_likely_ones(server):
    answer = server.ask(True, "s", logprobs=True, top_logprobs=5).json
    entries = chat_entries(answer["choices"])
    assert len(entries) == answer["usage"]["completion_tokens"] == 3
    assert [entry["token"] for entry in entries] == ["short ", "answer", "<|im_end|>"]
    assert bytes(entries[0]["bytes"]) == b"short "
    for entry in entries:
        assert len(entry["top_logprobs"]) == 5
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] > -0.01
        assert entry["token"] == entry["top_logprobs"][0]["token"]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert all(math.isfinite(value) and value <= 0 for value in values)


def test_a_sampled_token_is_in_its_own_list(server):
    """vllm-project/vllm#17876."""
    answer = server.ask(False, "s", logprobs=2, temperature=2, seed=3, logit_bias={"65": 19.0, "66": 18.5, "67": 18})
    lists = answer.json["choices"][0]["logprobs"]
    for token, value, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert top[token] == value
        assert len(top) in (2, 3)  # the two most likely, and the token itself


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("fields", [{}, {"stop": "een la"}, {"stop": "answer"}, {"max_tokens": 2}], ids=str)
@pytest.mark.parametrize("start", ["a", "c", "n", "u", "v", "s"])
def test_a_stream_says_what_the_whole_answer_says(server, chat, fields, start):
    """SharpAI/SwiftLM#126, Blaizzy/mlx-vlm#1778."""
    asked = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    whole = server.ask(chat, start, **asked, **fields).json
    streamed = choices_of(server.ask(chat, start, stream=True, **asked, **fields).chunks)
    choice = whole["choices"][0]
    if chat:
        assert chat_entries(streamed) == chat_entries([choice])
        assert "".join(one["delta"].get("content") or "" for one in streamed) == choice["message"]["content"]
        data = b"".join(bytes(entry["bytes"]) for entry in chat_entries([choice]) if entry["token"] != "<|im_end|>")
        assert data.decode("utf-8", "replace").startswith(choice["message"]["content"])
        assert len(chat_entries([choice])) == whole["usage"]["completion_tokens"]
    else:
        lists = text_lists([choice])
        assert text_lists(streamed) == lists
        assert "".join(one["text"] for one in streamed) == choice["text"]
        assert {len(values) for values in lists.values()} == {whole["usage"]["completion_tokens"]}
    assert [one["finish_reason"] for one in streamed if one["finish_reason"]] == [choice["finish_reason"]]


def test_without_top_logprobs_only_the_tokens_own_are_given(server):
    (entry, *_) = chat_entries(server.ask(True, "s", logprobs=True).json["choices"])
    assert entry["top_logprobs"] == []
    lists = server.ask(False, "s", logprobs=0).json["choices"][0]["logprobs"]
    assert [list(top) for top in lists["top_logprobs"]] == [[token] for token in lists["tokens"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("made", [0, 1, 3])
def test_echo_scores_the_prompt_before_the_answer(server, stream, made):
    """What lm-evaluation-harness asks for."""
    for prompt in (PROMPT, [ord(letter) - ord("!") if letter != " " else 220 for letter in PROMPT]):
        answer = server.ask(False, prompt, echo=True, max_tokens=made, logprobs=1, stream=stream)
        choices = choices_of(answer.chunks) if stream else answer.json["choices"]
        lists = text_lists(choices)
        assert "".join(choice["text"] for choice in choices) == PROMPT + ("", "short ", "", "short answer")[made]
        assert choices[-1]["finish_reason"] == ("stop" if made == 3 else "length")
        count = len(PROMPT) + made
        assert {len(values) for values in lists.values()} == {count}
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        assert all(value <= 0 for value in lists["token_logprobs"][1:])
        assert "".join(lists["tokens"][: len(PROMPT)]) == PROMPT
        assert lists["text_offset"][: len(PROMPT) + 1] == list(range(len(PROMPT) + bool(made)))
        assert made == 0 or lists["token_logprobs"][len(PROMPT)] > -0.01
        if not stream:
            assert answer.json["usage"]["completion_tokens"] == made


def test_echo_without_logprobs_only_puts_the_prompt_before_the_answer(server):
    answer = server.ask(False, "s", echo=True).json
    assert answer["choices"][0]["text"] == "sshort answer"
    assert answer["choices"][0]["logprobs"] is None


def test_prompt_logprobs_come_by_token_id(server):
    for chat in (False, True):
        answer = server.ask(chat, PROMPT, prompt_logprobs=2, max_tokens=1).json
        given = answer["prompt_logprobs"] if chat else answer["choices"][0]["prompt_logprobs"]
        assert len(given) == len(PROMPT)
        assert given[0] is None
        for ranked in given[1:]:
            assert len(ranked) in (2, 3)
            assert {entry["rank"] for entry in ranked.values()} >= {1, 2}
            assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in ranked.values())
    assert server.ask(False, "s", prompt_logprobs=1, stream=True).status == 400


def test_logprobs_are_the_same_from_a_cached_prompt(server):
    salt = {"cache_salt": "logprobs"}
    first, again = (
        server.ask(False, PROMPT, echo=True, logprobs=2, max_tokens=2, **salt).json["choices"][0]["logprobs"]
        for _ in range(2)
    )
    assert first == again


def test_tokens_may_be_given_as_ids(server, chain_model):
    answer = server.ask(False, "s", logprobs=1, return_tokens_as_token_ids=True).json
    assert answer["choices"][0]["logprobs"]["tokens"][0] == f"token_id:{chain_model.spelled['short ']}"

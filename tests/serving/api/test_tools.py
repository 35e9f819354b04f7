"""Tool calls and reasoning as OpenAI's own client sees them, whole and streamed, made by the model or forced."""

import json
from collections.abc import Iterator
from typing import Literal

import pytest
from pydantic import BaseModel

openai = pytest.importorskip("openai")

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module")
def server(start_server, server_options) -> Iterator[object]:
    with start_server(*server_options, "--set", "api.reasoning_parser=think") as started:
        yield started


@pytest.fixture
def client(server) -> Iterator["openai.OpenAI"]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def asked(text: str, **fields) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": "chain", "messages": messages, "temperature": 0, "tools": [WEATHER, CLOCK], **fields}


def whole(client, text: str, **fields):
    return client.chat.completions.create(**asked(text, **fields)).choices[0]


def streamed(client, text: str, **fields):
    """The choice that the client puts together from the stream."""
    with client.chat.completions.stream(**asked(text, **fields)) as stream:
        return stream.get_final_completion().choices[0]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_call_that_the_model_makes(client, ask):
    choice = ask(client, "t")
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "let me see"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "weather",
        {"city": "Rome"},
    )
    assert call.id.startswith("call_")


@pytest.mark.parametrize("ask", [whole, streamed])
def test_several_calls_and_one_where_only_one_is_wanted(client, ask):
    choice = ask(client, "p")
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "clock"]
    assert not choice.message.content
    assert len({call.id for call in choice.message.tool_calls}) == 2
    alone = ask(client, "p", parallel_tool_calls=False)
    assert [call.function.name for call in alone.message.tool_calls] == ["weather"]


def test_deltas_name_a_call_once_and_then_add_to_its_arguments(client):
    chunks = list(client.chat.completions.create(**asked("p", stream=True)))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    for index in (0, 1):
        own = [delta for delta in deltas if delta.index == index]
        assert [bool(delta.id) for delta in own] == [True, *[False] * (len(own) - 1)]
        assert [bool(delta.function.name) for delta in own] == [True, *[False] * (len(own) - 1)]
        json.loads("".join(delta.function.arguments for delta in own))
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}], ids=str)
def test_without_callable_tools_the_text_is_only_text(client, fields):
    choice = whole(client, "p", **fields)
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("<tool_call>")
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("text", ["s", "r"])
def test_a_forced_call_is_made_whatever_the_model_would_say(client, ask, text):
    named = {"type": "function", "function": {"name": "clock"}}
    for choice_, names in (("required", {"weather", "clock"}), (named, {"clock"})):
        choice = ask(client, text, tool_choice=choice_, parallel_tool_calls=False, max_tokens=200)
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert call.function.name in names
        if call.function.name == "weather":
            assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        assert not choice.message.content


def test_a_call_that_is_cut_off_stays_text(client):
    choice = whole(client, "t", max_tokens=3)
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("let me see <tool_call>")


def test_a_result_goes_back_to_the_model(client):
    call = whole(client, "t").message
    messages = [
        {"role": "user", "content": "t"},
        call.model_dump(exclude_none=True),
        {"role": "tool", "content": "s", "tool_call_id": call.tool_calls[0].id},
    ]
    assert whole(client, "", messages=messages).message.content == "short answer"
    messages[2]["tool_call_id"] = "call_other"
    with pytest.raises(openai.BadRequestError, match="call_other"):
        whole(client, "", messages=messages)


def test_reasoning_is_no_part_of_the_answer(server):
    answer = server.ask(True, "r").json
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm well", "the answer is 5")
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    deltas = [chunk["choices"][0]["delta"] for chunk in server.ask(True, "r", stream=True).chunks]
    for name, text in (("reasoning_content", "hm well"), ("content", "the answer is 5")):
        assert "".join(delta.get(name) or "" for delta in deltas) == text
    assert not [delta for delta in deltas if delta.get("content") and delta.get("reasoning_content")]


def test_logprobs_cover_reasoning_and_calls_too(server):
    for text, fields in (("r", {}), ("p", {"tools": [WEATHER, CLOCK]})):
        answer = server.ask(True, text, logprobs=True, **fields).json
        chunks = server.ask(True, text, logprobs=True, stream=True, **fields).chunks
        entries = answer["choices"][0]["logprobs"]["content"]
        assert len(entries) == answer["usage"]["completion_tokens"]
        streamed_entries = [
            entry
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
        assert streamed_entries == entries


class City(BaseModel):
    name: Literal["Rome"]
    capital: bool


def test_pydantic_models_are_parsed(client):
    asked_ = asked("s", tools=openai.omit, response_format=City, max_tokens=400)
    assert client.chat.completions.parse(**asked_).choices[0].message.parsed.name == "Rome"
    with client.chat.completions.stream(**asked_) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, City)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**asked_, "max_tokens": 5})


def test_json_mode_gives_an_object(server):
    answer = server.ask(True, "s", response_format={"type": "json_object"}, logit_bias={"92": 50}, max_tokens=100).json
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_choice": ["yes", "no (a.b)"]}, {"yes", "no (a.b)"}),
        ({"guided_regex": "[xyz]{3}"}, {a + b + c for a in "xyz" for b in "xyz" for c in "xyz"}),
        ({"structured_outputs": {"grammar": 'start: "left" | "right"'}}, {"left", "right"}),
        ({"structured_outputs": {"choice": ["가나다"]}}, {"가나다"}),
    ],
    ids=["choice", "regex", "grammar", "choice of letters"],
)
def test_every_kind_of_structure_holds_on_both_endpoints(server, fields, texts):
    for chat in (False, True):
        answer = server.ask(chat, "s", **fields)
        assert answer.status == 200, answer.body
        choice = answer.json["choices"][0]
        assert (choice["message"]["content"] if chat else choice["text"]) in texts
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs"),
        ({"guided_json": {"type": "nonsense"}}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
            "response_format",
        ),
        (
            {"tools": [{**CLOCK, "function": {"name": "f", "parameters": {"type": 5}}}], "tool_choice": "required"},
            "tools",
        ),
    ],
    ids=str,
)
def test_a_structure_that_cannot_be_is_refused_with_the_field_that_asked(server, fields, param):
    answer = server.ask(True, "s", **fields)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert server.ask(True, "s").status == 200

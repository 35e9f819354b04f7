"""What clients may send: every field with its bounds, the shapes of tools and structures, and what is refused by name."""

import json

import pytest
from pydantic import ValidationError

pytest.importorskip("fastapi")

from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.errors import to_api_error
from netgain.serving.api.protocol import CompletionRequest
from netgain.serving.engine.request import Grammar

USER = [{"role": "user", "content": "s"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


def chat(**fields) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps({"messages": USER, **fields}))


def text(**fields) -> CompletionRequest:
    return CompletionRequest.model_validate_json(json.dumps({"prompt": "s", **fields}))


def refusal(make, **fields) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as caught:
        make(**fields)
    error = to_api_error(caught.value)
    assert error.status == 400
    return error.detail.message, error.detail.param


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (chat, "min_p", 2),
        (chat, "min_p", -0.1),
        (chat, "presence_penalty", 2.1),
        (chat, "frequency_penalty", -3),
        (chat, "repetition_penalty", 0),
        (chat, "repetition_penalty", 1e9),
        (chat, "logit_bias", {"5": 101}),
        (chat, "logit_bias", {"five": 1}),
        (chat, "logit_bias", {"-5": 1}),
        (chat, "logit_bias", {"5": True}),
        (chat, "logit_bias", [5]),
        (chat, "logit_bias", {str(token): 1 for token in range(2000)}),
        (chat, "logprobs", 1),
        (chat, "top_logprobs", 5),  # without logprobs
        (chat, "prompt_logprobs", -1),
        (chat, "prompt_logprobs", 10**9),
        (text, "logprobs", True),
        (text, "logprobs", 21),
        (text, "echo", "yes"),
        (text, "suffix", "end"),
        (text, "best_of", 2),
        (chat, "min_tokens", -1),
        (chat, "priority", 2**40),
        (chat, "priority", 0.5),
        (chat, "timeout_s", 0),
        (chat, "timeout_s", 10**9),
        (chat, "guided_choice", []),
        (chat, "guided_regex", ""),
        (chat, "guided_regex", "a" * 70_000),
        (chat, "guided_json", "{"),
        (chat, "guided_json", 5),
        (chat, "structured_outputs", {}),
        (chat, "structured_outputs", {"regex": "a", "choice": ["b"]}),
        (chat, "response_format", {"type": "json_schema"}),
        (chat, "response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        (chat, "response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}}),
        (chat, "response_format", {"type": "yaml"}),
        (chat, "response_format", "json_object"),
        (chat, "tools", [{"type": "function"}]),
        (chat, "tools", [{"type": "function", "function": {"name": "two words"}}]),
        (chat, "tools", [{"type": "custom", "custom": {"name": "x"}}]),
        (chat, "tools", [WEATHER, WEATHER]),
        (chat, "tools", [WEATHER] * 129),
        (chat, "tool_choice", "required"),  # without tools
        (chat, "tool_choice", "always"),
        (chat, "tool_choice", {"type": "function", "function": {"name": "weather"}}),
        (chat, "tool_choice", {"type": "allowed_tools", "allowed_tools": {}}),
        (chat, "functions", [{"name": "weather"}]),
        (chat, "function_call", {"name": "weather"}),
        (chat, "chat_template", "{{ messages }}"),
        (chat, "modalities", ["text", "audio"]),
        (chat, "chat_template_kwargs", {"messages": []}),
        (chat, "use_beam_search", True),
        (chat, "truncate_prompt_tokens", 10),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_field(make, field, value):
    message, param = refusal(make, **{field: value})
    assert field in message or field in (param or "")
    assert param is not None


def test_structure_is_asked_for_once():
    message, param = refusal(chat, guided_regex="a", response_format={"type": "json_object"})
    assert "response_format and guided_regex" in message
    assert param == "guided_regex"


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar(kind="json_schema", text='{"type": "object"}')),
        ({"response_format": {"type": "text"}}, None),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "c", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar(kind="json_schema", text=json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, Grammar(kind="json_schema", text=json.dumps(SCHEMA))),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind="json_schema", text='{"type": "object"}')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar(kind="lark", text='start: "a"')),
        ({"guided_regex": "[ab]+"}, Grammar(kind="regex", text="[ab]+")),
        ({"guided_choice": ["yes", "no (a.b)"]}, Grammar(kind="regex", text=r"(yes)|(no \(a\.b\))")),
        ({"guided_grammar": 'start: "a"'}, Grammar(kind="lark", text='start: "a"')),
    ],
)
def test_every_way_to_ask_for_a_structure_becomes_a_grammar(fields, grammar):
    for make in (chat, text):
        structure = make(**fields).structure
        assert (None if structure is None else structure[1]) == grammar


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([{"role": "tool", "content": "5"}], "tool_call_id"),
        ([{"role": "tool", "content": "5", "tool_call_id": "call_1"}], "messages.0"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "only an assistant message"),
        ([{"role": "user"}], "needs content"),
        ([{"role": "user", "content": None}], "needs content"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}], "same id"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}], "id"),
        ([{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}], "arguments"),
        ([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}], "function_call"),
        (
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "5", "tool_call_id": "call_2"},
            ],
            "call_2",
        ),
        (
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "content": "5", "tool_call_id": "call_1"},
                {"role": "tool", "content": "6", "tool_call_id": "call_1"},
            ],
            "messages.2",
        ),
        ([{"role": "function", "name": "f", "content": "5"}], "role"),
    ],
)
def test_turns_that_do_not_fit_together_are_refused(messages, names):
    message, param = refusal(chat, messages=[*USER, *messages] if "messages.0" not in names else messages)
    assert names.replace("messages.2", "messages.3") in f"{message} {param}"


def test_a_history_of_calls_reaches_the_template():
    request = chat(
        messages=[
            *USER,
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]},
            {"role": "tool", "content": [{"type": "text", "text": "sunny"}], "tool_call_id": "call_1"},
        ]
    )
    _, call, result = [message.for_template() for message in request.messages]
    assert call["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert (call["content"], call["reasoning_content"]) == ("", "hm")
    assert result == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}


def test_tool_choice_says_which_tools_may_or_must_be_called():
    other = {"type": "function", "function": {"name": "time"}}
    named = {"type": "function", "function": {"name": "time"}}

    def names(tools):
        return [tool.function.name for tool in tools]

    for choice, callable_, forced in (
        (None, ["weather", "time"], []),
        ("auto", ["weather", "time"], []),
        ("none", [], []),
        ("required", ["weather", "time"], ["weather", "time"]),
        (named, ["weather", "time"], ["time"]),
    ):
        request = chat(tools=[WEATHER, other], tool_choice=choice)
        assert names(request.callable_tools) == callable_
        assert names(request.forced_tools) == forced


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "x"},
        {"prompt_cache_key": "k", "parallel_tool_calls": False, "verbosity": "medium", "an_unknown_field": [1]},
        {"functions": None, "function_call": "auto", "modalities": ["text"], "best_of": 1, "length_penalty": 1.0},
        {"logit_bias": {"5": 1, "3": -2.5}, "n": 3, "best_of": 3, "reasoning_effort": "low"},
    ],
)
def test_fields_that_change_nothing_pass(fields):
    chat(**fields)


def test_logit_bias_is_in_ascending_order_of_ids():
    assert chat(logit_bias={"50": 1, "3": -2.5}).logit_bias == ((3, -2.5), (50, 1.0))

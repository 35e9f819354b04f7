"""Tools for templates that know none, and grammars that force a call: what one writes the other's reader finds."""

import json
import random

import pytest

pytest.importorskip("torch")

from netgain.serving.api.chat_protocol import Function
from netgain.serving.api.forced_call import forced_call
from netgain.serving.api.parsing.parts import ToolCallArguments, ToolCallStart
from netgain.serving.api.parsing.registry import TOOL_FORMS, OutputFormat
from netgain.serving.api.tool_text import knows_tools, with_tools_as_text
from netgain.serving.model.vocabulary.folder import tokenizer_from_file

TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": {"type": "object"}},
}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


@pytest.mark.parametrize("form", TOOL_FORMS.values(), ids=TOOL_FORMS)
def test_a_call_in_the_history_is_written_as_the_reader_reads_it(form):
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    offer, _, written = with_tools_as_text(turns, [TOOL], form)
    assert offer["role"] == "system"
    assert json.dumps(TOOL["function"]) in offer["content"]
    assert set(written) == {"role", "content"}
    parser = OutputFormat(tools=form).parser(tools={"weather"}, inside_reasoning=False, source=random.Random(0))
    start, arguments = [*parser.feed(written["content"]), *parser.finish()]
    assert isinstance(start, ToolCallStart)
    assert isinstance(arguments, ToolCallArguments)
    assert (start.name, json.loads(arguments.text)) == ("weather", {"city": "Rome"})


def test_the_offer_joins_a_system_turn_that_is_there():
    first, second = with_tools_as_text(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], [TOOL], TOOL_FORMS["hermes"]
    )
    assert first["content"].startswith("Be brief.\n\n")
    assert second == {"role": "user", "content": "x"}


def test_a_template_knows_tools_when_it_names_them():
    assert knows_tools("{% if tools %}{{ tools | tojson }}{% endif %}")
    assert not knows_tools("{{ messages[0].content }} mytools")


def test_a_forced_call_names_control_tokens_by_id_and_keeps_each_schema_its_own_root(chain_model):
    tokenizer = tokenizer_from_file(chain_model.folder / "tokenizer.json")
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    functions = [Function(name="f", parameters=schema), Function(name="g")]
    grammar = forced_call(TOOL_FORMS["hermes"], functions, tokenizer, several=False)
    assert grammar.kind == "lark"
    start, call, *rules = grammar.text.split("\n")
    assert start == 'start: "<tool_call>" "\\n" call "\\n" "</tool_call>"'
    assert call == "call: call_0 | call_1"
    assert json.loads(rules[1].removeprefix("args_0: %json "))["$defs"] == schema["$defs"]

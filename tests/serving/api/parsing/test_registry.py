"""A model's own markers choose how its output is read; settings can say otherwise."""

import json
import random
from typing import get_args

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from netgain.serving.api.parsing.parts import PlainParser
from netgain.serving.api.parsing.registry import (
    REASONING_FORMS,
    TOOL_FORMS,
    OutputFormat,
    choose_reasoning,
    choose_tools,
    output_format,
)
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer
from netgain.serving.runtime.config import ApiSettings


def tokenizer(*markers: str) -> Tokenizer:
    """A byte tokenizer with these control tokens from 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    encoder = Encoder(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken(marker) for marker in markers])
    return Tokenizer(json.loads(encoder.to_str()), "test")


PLAIN = tokenizer("<|im_end|>")


@pytest.mark.parametrize(
    ("template", "markers", "tools", "reasoning"),
    [
        ("{{ '<tool_call>' }}", (), "hermes", "none"),
        ("{{ '<tool_call></think>' }}", (), "hermes", "think"),
        ("[TOOL_CALLS]", ("<tool_call>",), "mistral", "none"),
        ("x", ("<|python_tag|>",), "llama3_json", "none"),
        ("x", ("<tool_call>", "</think>", "<think>"), "hermes", "think"),
        ("x", ("[TOOL_CALLS]", "[THINK]", "[/THINK]"), "mistral", "mistral"),
        ("x", (), "none", "none"),
        (None, (), "none", "none"),
    ],
)
def test_markers_choose(template: str | None, markers: tuple[str, ...], tools: str, reasoning: str) -> None:
    vocabulary = tokenizer("<|im_end|>", *markers)
    form = None if template is None else ChatTemplate(template)
    assert (choose_tools(vocabulary, form), choose_reasoning(vocabulary, form)) == (tools, reasoning)
    assert output_format("auto", "auto", vocabulary, form) == output_format(tools, reasoning, PLAIN, None)


def test_settings_name_what_there_is() -> None:
    fields = ApiSettings.model_fields
    assert set(get_args(fields["tool_parser"].annotation)) == {"auto", "none", *TOOL_FORMS}
    assert set(get_args(fields["reasoning_parser"].annotation)) == {"auto", "none", *REASONING_FORMS}


def test_none_reads_nothing() -> None:
    form = output_format("none", "none", tokenizer("<tool_call>"), None)
    assert form == OutputFormat()
    assert isinstance(form.parser(tools={"f"}, inside_reasoning=False, source=random.Random(1)), PlainParser)
    assert form.keep(tools=True) == frozenset()


@pytest.mark.parametrize("name", TOOL_FORMS)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    form = output_format(name, "none", PLAIN, None)
    assert isinstance(form.parser(tools=(), inside_reasoning=False, source=random.Random(1)), PlainParser)
    assert form.keep(tools=False) == frozenset()
    assert form.keep(tools=True) >= {TOOL_FORMS[name].opener}


def test_control_tokens_that_a_parser_needs_stay_in_the_text() -> None:
    vocabulary = tokenizer("[TOOL_CALLS]", "[ARGS]", "</s>")
    form = output_format("auto", "none", vocabulary, None)
    ids = [256, *vocabulary.encode("f"), 257, *vocabulary.encode("{}"), 258]
    assert Detokenizer(vocabulary, form.keep(tools=True)).push(ids) == "[TOOL_CALLS]f[ARGS]{}"
    assert Detokenizer(vocabulary).push(ids) == "f{}"


def test_a_prompt_that_opens_the_thoughts_is_seen() -> None:
    vocabulary = tokenizer("<think>", "</think>", "<|im_end|>")
    form = output_format("none", "think", vocabulary, None)
    newline, word = vocabulary.encode("\n"), vocabulary.encode("hello there, this is long enough")
    assert form.opens_reasoning(vocabulary, [*word, 256, *newline])
    assert form.opens_reasoning(vocabulary, [*word, *vocabulary.encode("<think>")])
    assert not form.opens_reasoning(vocabulary, [*word, 256, *newline, 257, *newline])
    assert not form.opens_reasoning(vocabulary, [256, *word])
    assert not OutputFormat().opens_reasoning(vocabulary, [256])

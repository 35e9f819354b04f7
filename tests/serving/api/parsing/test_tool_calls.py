"""Tool calls in generated text: found whole, however the text is cut; what is none stays content, to the last character."""

import itertools
import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netgain.serving.api.parsing.parts import Content, OutputParser, Part, Reasoning, ToolCallArguments, ToolCallStart
from netgain.serving.api.parsing.registry import OutputFormat
from netgain.serving.api.parsing.tools import HERMES, LLAMA3_JSON, MISTRAL, ToolForm

WEATHER = '{"name": "weather", "arguments": {"city": "Köln \\"am\\" Rhein", "days": [1, 2.50, -3e5]}}'
FORMS = st.sampled_from([HERMES, LLAMA3_JSON, MISTRAL])


def parser(form: ToolForm) -> OutputParser:
    return OutputFormat(tools=form).parser(
        tools={"weather", "now", "f"}, inside_reasoning=False, source=random.Random(1)
    )


def read(form: ToolForm, *pieces: str) -> list[Part]:
    """The parts of a text fed in these pieces, adjacent content joined."""
    reader = parser(form)
    return joined([part for piece in pieces for part in reader.feed(piece)] + reader.finish())


def joined(parts: Sequence[Part]) -> list[Part]:
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(last, Content) and isinstance(part, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(last, Reasoning) and isinstance(part, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        else:
            result.append(part)
    return result


def short(parts: Sequence[Part]) -> list[str | tuple[str, str]]:
    """Content as text and calls as (name, arguments)."""
    found: list[str | tuple[str, str]] = []
    for part in parts:
        match part:
            case Content(text):
                found.append(text)
            case ToolCallStart(_, _, name):
                found.append((name, ""))
            case ToolCallArguments(_, text):
                name, before = found[-1]
                found[-1] = (name, before + text)
    return found


CITY = ("weather", '{"city": "Köln \\"am\\" Rhein", "days": [1, 2.50, -3e5]}')


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, f"<tool_call>\n{WEATHER}\n</tool_call>", [CITY]),
        (HERMES, f"Let me look.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>\n",
         ["Let me look.", CITY, CITY]),
        (HERMES, f"<tool_call>{WEATHER}</tool_call>\nDone.", [CITY, "\nDone."]),
        (HERMES, f"<tool_call>{WEATHER}", [CITY]),
        (HERMES, f"<tool_call>[{WEATHER}, {WEATHER}]</tool_call>", [CITY, CITY]),
        (HERMES, '<tool_call>{"name": "now"}</tool_call>', [("now", "{}")]),
        (HERMES, '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", "{}")]),
        (LLAMA3_JSON, WEATHER.replace("arguments", "parameters"), [CITY]),
        (LLAMA3_JSON, f"<|python_tag|>{WEATHER};{WEATHER}", [CITY, CITY]),
        (LLAMA3_JSON, '\n{"type": "function", "name": "f", "parameters": {}}; ', [("f", "{}")]),
        (MISTRAL, f"[TOOL_CALLS][{WEATHER}, {WEATHER}]", [CITY, CITY]),
        (MISTRAL, f"[TOOL_CALLS] [{WEATHER}]\n", [CITY]),
        (MISTRAL, f"Sure.[TOOL_CALLS]{CITY[0]}[ARGS]{CITY[1]}[TOOL_CALLS]f[ARGS]{{}}", ["Sure.", CITY, ("f", "{}")]),
        (MISTRAL, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", [("f", "{}")]),
        (MISTRAL, '[TOOL_CALLS]f{"a": 1}', [("f", '{"a": 1}')]),
    ],
)  # fmt: skip
def test_calls_of_each_family_are_found_at_every_cut(form: ToolForm, text: str, expected: list[object]) -> None:
    whole = read(form, text)
    assert short(whole) == expected
    assert read(form, *text) == whole
    for cut in range(len(text)):
        assert read(form, text[:cut], text[cut:]) == whole


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL])
@pytest.mark.parametrize(
    "text",
    [
        "plain text, 1 < 2 <tool> [1] {x}",
        "  \n white space at both ends \n ",
        "   ",
        "<tool_call>",
        "<tool_cal",
        '<tool_call>{"name": "f", "arguments": {"a": "cut of',
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call> and on',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "sunny", "arguments": {}}</tool_call>',  # no function of that name is offered
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>f(x=1)</tool_call>",
        "<|python_tag|>print(1)",
        '{"name": "Ada", "born": 1815}',
        '{"name": "Ada"}',
        '{"answer": 42}',
        '{"name": "f", "parameters": {"a": 01}}',
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]a b[ARGS]{}",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": NaN}}]',
        "[TOOL_CALLS]sunny[ARGS]{}",
        '{"name": "sunny", "parameters": {}}',
    ],
)
def test_what_is_no_call_is_content_to_the_last_character(form: ToolForm, text: str) -> None:
    expected = [text]
    assert short(read(form, text)) == expected
    assert short(read(form, *text)) == expected


def test_a_good_call_behind_a_broken_one_is_found() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {'
    assert short(read(HERMES, f"{broken}\n<tool_call>{WEATHER}</tool_call>")) == [broken, CITY]
    assert short(read(HERMES, f'<tool_call>[{WEATHER}, {{"name": 1}}]</tool_call>')) == [
        CITY,
        '{"name": 1}]</tool_call>',
    ]


@pytest.mark.parametrize("left", range(1, len("</tool_call>")))
@pytest.mark.parametrize("call", [f"<tool_call>\n{WEATHER}", f"<tool_call>[{WEATHER}]"])
def test_an_end_marker_that_was_cut_behind_a_call_is_no_content(call: str, left: int) -> None:
    text = f"{call}\n{'</tool_call>'[:left]}"
    assert short(read(HERMES, text)) == [CITY]
    assert short(read(HERMES, *text)) == [CITY]
    assert short(read(HERMES, text + "x")) == [CITY, f"\n{'</tool_call>'[:left]}x"]


def test_content_does_not_wait_for_the_end_of_what_cannot_be_a_call() -> None:
    reader = parser(HERMES)
    assert reader.feed("a <") == [Content("a")]
    assert reader.feed("b") == [Content(" <b")]
    assert reader.feed('<tool_call>{"name" = ') == [Content('<tool_call>{"name" =')]
    bare = parser(LLAMA3_JSON)
    assert bare.feed('{"city": ') == [Content('{"city":')]


def test_calls_are_numbered_and_have_ids_of_their_own() -> None:
    starts = [part for part in read(HERMES, f"<tool_call>{WEATHER}</tool_call>" * 3) if isinstance(part, ToolCallStart)]
    assert [start.index for start in starts] == [0, 1, 2]
    assert len({start.id for start in starts}) == 3
    assert all(start.id.startswith("call_") and len(start.id) == 29 for start in starts)
    mistral = [part for part in read(MISTRAL, f"[TOOL_CALLS][{WEATHER}]") if isinstance(part, ToolCallStart)]
    assert len(mistral[0].id) == 9
    assert mistral[0].id.isalnum()


def test_deep_nesting_is_no_call_and_no_error() -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 10_000
    assert short(read(HERMES, text)) == [text]


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<tool_", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", "{", "}",
        ",", ";", ":", '"', "\\", "\\u00e9", '"name"', '"arguments"', '{"name": "f", "arguments": {"a": 1}}', "f", " ", "\n",
        "1", "null", "é", "<", "🫠",
    ]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)


@given(form=FORMS, text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=8))
@example(form=LLAMA3_JSON, text="", cuts=[])
def test_the_cut_does_not_matter(form: ToolForm, text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    parts = read(form, *pieces)
    assert parts == read(form, text)
    for part in parts:
        if isinstance(part, ToolCallArguments):
            assert isinstance(json.loads(part.text), dict)


@given(form=FORMS, text=TEXTS)
def test_nothing_is_lost(form: ToolForm, text: str) -> None:
    """Every character of a text without calls comes back; with calls, content is a part of the text in its order."""
    parts = short(read(form, text))
    if not any(isinstance(part, tuple) for part in parts):
        assert "".join(map(str, parts)) == text
    at = 0
    for part in parts:
        if isinstance(part, str):
            at = text.index(part, at) + len(part)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_any_json_arguments_arrive_as_written(value: object, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps({"x": value}, ensure_ascii=ascii_only, indent=indent)
    parts = read(HERMES, *f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>')
    assert short(parts) == [("f", written)]

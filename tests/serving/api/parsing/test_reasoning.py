"""Thoughts and answer are told apart, whoever opened the thoughts and however the text was cut."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.api.parsing.parts import Content, Part, Reasoning
from netgain.serving.api.parsing.reasoning import MISTRAL, THINK, ReasoningForm
from netgain.serving.api.parsing.registry import OutputFormat
from netgain.serving.api.parsing.tools import HERMES

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def read(*pieces: str, form: ReasoningForm = THINK, inside: bool = False, tools: bool = False) -> tuple[str, str, int]:
    """The thoughts, the content and the number of calls."""
    reader = OutputFormat(HERMES, form).parser(
        tools={"f"} if tools else (), inside_reasoning=inside, source=random.Random(1)
    )
    parts: list[Part] = [part for piece in pieces for part in reader.feed(piece)] + reader.finish()
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    content = "".join(part.text for part in parts if isinstance(part, Content))
    return thoughts, content, sum("Start" in type(part).__name__ for part in parts)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>\na < b\n\nc\n</think>\n\nyes ", False, ("a < b\n\nc", "yes ")),
        ("\n<think>a</think>b", False, ("a", "b")),
        ("a\n</think>\n\nb", True, ("a", "b")),
        ("<think>\na</think>b", True, ("a", "b")),
        ("<think>\n\n</think>\n\nb", False, ("", "b")),
        ("<think>cut of", False, ("cut of", "")),
        ("cut </thin", True, ("cut </thin", "")),
        ("", True, ("", "")),
        (" no thoughts <think>a</think>", False, ("", " no thoughts <think>a</think>")),
        ("<thin", False, ("", "<thin")),
        ("  \n", False, ("", "  \n")),
        ("a</think>b</think>c", True, ("a", "b</think>c")),
    ],
)
def test_thoughts_and_answer_are_told_apart_at_every_cut(text: str, inside: bool, expected: tuple[str, str]) -> None:
    assert read(text, inside=inside)[:2] == expected
    assert read(*text, inside=inside)[:2] == expected
    for cut in range(len(text)):
        assert read(text[:cut], text[cut:], inside=inside)[:2] == expected


def test_tags_of_mistral() -> None:
    assert read("[THINK]a[/THINK]b", form=MISTRAL) == ("a", "b", 0)


def test_calls_are_read_behind_the_thoughts_and_not_in_them() -> None:
    assert read(f"<think>\n{CALL}?\n</think>\n\n{CALL}", tools=True) == (f"{CALL}?", "", 1)
    assert read(f"{CALL}</think>Well.\n{CALL}", inside=True, tools=True) == (CALL, "Well.", 1)
    assert read(f"<think>a</think>{CALL}", tools=False) == ("a", CALL, 0)


def test_thoughts_stream_before_they_end() -> None:
    reader = OutputFormat(None, THINK).parser(tools=(), inside_reasoning=True, source=random.Random(1))
    assert reader.feed("first ") == [Reasoning("first")]
    assert reader.feed("second") == [Reasoning(" second")]
    assert reader.feed(" </think> a") == [Content("a")]
    assert reader.feed(" b") == [Content(" b")]


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "a", " ", "\n", CALL, "</th"]), max_size=12).map(
        "".join
    ),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    inside=st.booleans(),
    tools=st.booleans(),
)
def test_the_cut_does_not_matter(text: str, cuts: list[int], inside: bool, tools: bool) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert read(*pieces, inside=inside, tools=tools) == read(text, inside=inside, tools=tools)

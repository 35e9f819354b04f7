"""The report as Markdown: the verdict on what it rests, as GitHub reads it, with nothing from outside taken for markup."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from netgain.deciding.report.document import document_of
from netgain.deciding.report.markdown import nothing_tried_markdown, verdict_markdown
from netgain.deciding.report.markdown_text import begin, fence, items, plain, table
from netgain.deciding.report.write import write_report
from netgain.deciding.verdict.document import Caveat, Deployable
from tests.deciding.test_report import adopted, outcome_of, swept_of, trial_of
from tests.deciding.test_report_document import LOSSY

__all__ = ["adopted"]  # a fixture

READER = MarkdownIt("commonmark").enable("table")
HOSTILE = "a|b `c`\n# <img src=x onerror=y> [l](http://x.y) **b** @someone #12 \\| $x$ ~~s~~ &amp;"
UNLINKED = "<!-- -->"  # between a sign and what GitHub would link with it


def shown(token) -> str:
    """What a reader sees of an inline token, without the comments that keep GitHub from linking."""
    return "".join(part.content for part in token.children if part.content != UNLINKED)


def inlines(text: str) -> list[str]:
    return [shown(token) for token in READER.parse(text) if token.type == "inline"]


def kinds(text: str) -> set[str]:
    """Types of all tokens, of HTML also what it is."""
    tokens = READER.parse(text)
    parts = [part for token in tokens for part in (token, *(token.children or ()))]
    return {f"{part.type} {part.content}" if part.type.startswith("html") else part.type for part in parts}


def test_it_says_decision_effect_prediction_figures_quality_rollback_and_command(adopted):
    told = msgspec.structs.replace(with_command(adopted), engine_version="0.1.0")
    text = verdict_markdown(document_of(told), adopted.scores)
    order = [
        text.index(part)
        for part in (
            "## ADOPT: n-gram speculation",
            "Speedup **",
            "### Predicted before, measured after",
            "| net gain per request |",
            "### Before and after",
            "| e2e p95",
            "| output tokens/s |",
            "| met the whole SLO (ttft.p95=500ms,itl.p99=50ms) |",
            "| Must not get worse |",
            "### Quality",
            "**Held**",
            "### What this cannot show",
            "- Other loads.",
            "### Going back",
            "Go back",
            "```sh\nnetgain serve default --speculation ngram\n```",
            "baseline: netgain 0.1.0, model default",
            "2026-01-01 00:00 UTC, netgain 0.1.0, test processor.",
        )
    ]
    assert order == sorted(order)
    effect = adopted.analysis.verdict.primary
    assert f"Speedup **{effect.ratio:.2f}x** (95 % interval {effect.low:.2f}x to {effect.high:.2f}x" in text


def test_every_table_has_as_many_cells_in_each_row_as_columns(adopted):
    lossy = msgspec.structs.replace(swept_of(adopted), chosen="kv-int8", quality=LOSSY)
    text = verdict_markdown(document_of(lossy), lossy.scores)
    html = READER.render(text)
    tables = re.findall(r"<table>.*?</table>", html, re.DOTALL)
    assert len(tables) == 6
    for one in tables:
        cells = [len(re.findall(r"<t[hd]", row)) for row in re.findall(r"<tr>.*?</tr>", one, re.DOTALL)]
        assert len(cells) > 1
        assert len(set(cells)) == 1
    assert "It pays up to 4 concurrent requests" in text
    assert "| 64 | unknown | none | unknown | inconclusive |" in text
    assert "| perplexity |" in text


def with_command(outcome, *words: str):
    command = ("netgain", "serve", "default", *(words or ("--speculation", "ngram")))
    one = Deployable(engine="netgain", advises="candidate", flags=words, command=command, checked_with=("0.1.0",))
    return msgspec.structs.replace(outcome, deployable=(one,))


def test_nothing_from_outside_is_taken_for_markup(make_record):
    outcome = with_command(outcome_of(trial_of(make_record), model=HOSTILE), "```\n# not a heading")
    outcome = msgspec.structs.replace(
        outcome, title=HOSTILE, caveats=(Caveat(says=HOSTILE),), cannot_show=(HOSTILE,), stopped=HOSTILE
    )
    line = " ".join(HOSTILE.split())
    for text in (verdict_markdown(document_of(outcome), outcome.scores), nothing_tried_markdown(outcome)):
        assert {kind for kind in kinds(text) if kind.startswith("html")} <= {f"html_inline {UNLINKED}"}
        assert not kinds(text) & {"link_open", "image", "code_inline", "s_open"}
        assert any(line in words for words in inlines(text))
        assert "@someone" not in text
        assert "#12" not in text
        assert [words for words in inlines(text) if words.startswith("not a heading")] == []
    fences = [token for token in READER.parse(verdict_markdown(document_of(outcome))) if token.type == "fence"]
    assert [token.content for token in fences] == ["netgain serve default '```\n# not a heading'\n"]


@given(st.text(min_size=1).filter(str.split))
def test_words_are_shown_as_they_stand_in_text_lists_and_cells(words):
    line = plain(words)
    if not line:
        return  # nothing of it can be printed
    for text in (begin(words), "\n".join(items([words])), "\n".join(table(["x"], [[words]]))):
        again = inlines(text)[-1]
        assert plain(again) == line
        assert not kinds(text) & {"link_open", "image", "code_inline", "em_open", "strong_open", "hardbreak", "fence"}
        assert {kind for kind in kinds(text) if kind.startswith("html")} <= {f"html_inline {UNLINKED}"}


@given(st.text(alphabet="`a\n ", min_size=1).filter(lambda text: text.strip("\n") != ""))
def test_a_fence_holds_whatever_is_in_it(text):
    (token,) = READER.parse("\n".join(fence(text, "sh")))
    assert token.content == text.rstrip("\n") + "\n"


@pytest.mark.parametrize("word", ["1. one", "- one", "+ one", "# one", "12) one", "= one", "> one"])
def test_a_line_that_looks_like_a_block_is_a_paragraph(word):
    assert inlines(begin(word)) == [word]
    assert READER.parse(begin(word))[0].type == "paragraph_open"


def test_what_is_unknown_is_said_and_failures_are_no_number(make_record):
    outcome = outcome_of(trial_of(make_record, fails=True))
    text = verdict_markdown(document_of(outcome))
    assert "| requests failed | 0 of 42 | 42 of 42 |" in text
    assert "**breached**" not in text
    assert "breached" in text
    assert not re.search(r"\b(inf|nan|None)\b", text)


def test_it_is_written_beside_the_page_also_when_nothing_was_tried(adopted, tmp_path):
    write_report(adopted, tmp_path / "one")
    assert (tmp_path / "one/report.md").read_text() == verdict_markdown(document_of(adopted), adopted.scores)
    nothing = msgspec.structs.replace(
        adopted, analysis=None, prediction=None, chosen=None, title=None, scores=(), arms=(), blocks=(), drafting=None,
        stopped="no technique can be tried here",
    )  # fmt: skip
    write_report(nothing, tmp_path / "two")
    text = (tmp_path / "two/report.md").read_text()
    assert text.startswith("## NOTHING TRIED: default on edit\n\nNo technique can be tried here.\n")
    assert len(text.splitlines()) < 30
    assert not (tmp_path / "two/verdict.json").exists()

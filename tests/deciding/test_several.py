"""Which of several to turn on: the whole loop on servers of a known pace, one experiment for each candidate."""

import io
import json
import shlex
import sys

import msgspec
import pytest
from rich.console import Console

from netgain.deciding.decide.loop import decide, decide_several
from netgain.deciding.decide.prepared import to_go_on_with
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.report.candidates_text import candidates_markdown, print_candidates
from netgain.deciding.report.candidates_write import JSON, write_candidates
from netgain.deciding.report.several import CandidatesDocument, candidates_document
from netgain.deciding.verdict.store import read_verdict
from netgain.errors import Unavailable, UsageError
from tests.deciding.compare import paced_server

TOKEN_S = 0.006
TRIED = ("ngram", "suffix")
ANSWER = " ".join(f"word{place}" for place in range(8))


@pytest.fixture
def settings(tmp_path):
    """Settings of a short decision on a server whose tokens come faster with some methods; its answers stand in the prompts."""
    lines = [
        {"id": f"p{n}", "category": "c", "max_tokens": 8, "prompt": f"{n} {ANSWER} {ANSWER} word0"} for n in range(12)
    ]
    workload = tmp_path / "prompts.jsonl"
    workload.write_text("\n".join(json.dumps(line) for line in lines))

    def settings(paces, **fields):
        words = [sys.executable, paced_server.__file__, "--token-s", str(TOKEN_S), "--paces", json.dumps(paces)]
        command = f"{shlex.join(words)} --port {{port}} --model {{model}} {{flags}}"
        asked = {
            "output": tmp_path / "out",
            "workload": str(workload),
            "quick": True,
            "engine": "vllm",
            "model": "m",
            "techniques": TRIED,
            "starting": Starting(command=command),
            **fields,
        }
        return Settings(**asked)

    return settings


class Cut(Exception):
    """The run ends here, as by a crash."""


class CutAfter:
    """A narrator that ends the run at the nth block of a candidate's experiment."""

    def __init__(self, experiment, blocks):
        self.experiment, self.blocks = experiment, blocks
        self.experiments = self.done = 0

    def phase(self, text, steps=None):
        self.experiments += text.startswith("experiment:")
        self.done = 0

    def step(self, text=""):
        self.done += 1
        if self.experiments == self.experiment and self.done == self.blocks:
            raise Cut

    def found(self, text):
        return


class Heard:
    """A narrator that keeps what it was told."""

    def __init__(self):
        self.said = []

    def phase(self, text, steps=None):
        self.said.append(text)

    def step(self, text=""):
        return

    def found(self, text):
        self.said.append(text)


def test_each_candidate_is_tried_by_itself_and_the_one_that_gains_most_is_to_be_turned_on(
    settings, tmp_path, leaves_no_process
):
    heard = Heard()
    found = decide_several(settings({"ngram": TOKEN_S / 2, "suffix": TOKEN_S / 4}), heard)
    assert [one.chosen for one in found.outcomes] == list(TRIED)
    assert any("2 candidates x 2 arms x 1 device" in said for said in heard.said)
    document = candidates_document(found)
    assert (document.adopted, document.others_adopted) == ("suffix", ("ngram",))
    assert sorted(line.level for line in document.lines) == pytest.approx([0.025, 0.05])
    assert "not tried together" in document.says[1]
    assert '"suffix"' in shlex.join(document.deploy.command)
    assert {line.kind for line in document.lines} == {"law-preserving"}, "on vLLM no more is promised"
    page = write_candidates(found, tmp_path / "out")
    assert 'href="suffix/report.html"' in page.read_text()
    again = msgspec.json.decode((tmp_path / "out" / JSON).read_bytes(), type=CandidatesDocument)
    assert (again.schema, again.adopted) == ("netgain.candidates", "suffix")
    for name in TRIED:
        verdict = read_verdict(tmp_path / "out" / name)
        assert verdict.decision == "adopt"
        assert verdict.family.tried == TRIED
        assert verdict.confidence == pytest.approx(1.0 - verdict.family.level)
        assert verdict.design.starts == 2
        assert "one of 2 candidates" in (tmp_path / "out" / name / "report.md").read_text()
        assert 'href="../report.html"' in (tmp_path / "out" / name / "report.html").read_text()
        assert (tmp_path / "out" / name / "records.jsonl").read_text().count("\n") == len(
            (tmp_path / "out" / name / "blocks.jsonl").read_text().splitlines()[1:]
        ) * (verdict.design.requests // verdict.design.blocks)
    with pytest.raises(UsageError, match=r"give the folder of one: .*ngram, .*suffix"):
        read_verdict(tmp_path / "out")
    console = Console(file=io.StringIO(), width=160)
    print_candidates(document, console)
    for text in (console.file.getvalue(), candidates_markdown(document)):
        assert "ADOPT suffix" in text
        assert "2.5 %" in text
        for said in document.caveats:
            assert " ".join(said.split()[:4]) in text
    shared = [said for said in document.caveats if said.startswith("Answers: on vllm")]
    assert len(shared) == 1, "what is said of both is said once, without a name"


def test_a_run_that_ended_in_the_second_candidate_goes_on_there(settings, tmp_path, leaves_no_process):
    asked = settings({"ngram": TOKEN_S / 2})
    with pytest.raises(Cut):
        decide_several(asked, CutAfter(experiment=2, blocks=30))
    out = tmp_path / "out"
    first = (out / "ngram" / "blocks.jsonl").read_bytes()
    begun = (out / "suffix" / "blocks.jsonl").read_bytes()
    assert begun.count(b'"entry":"block"') == 30
    assert f"{first.count(b'entry') + 30} finished blocks kept" in to_go_on_with(out)
    with pytest.raises(UsageError, match="holds another experiment"):
        decide_several(asked)
    with pytest.raises(UsageError, match="techniques"):
        decide_several(msgspec.structs.replace(asked, resume=True, techniques=("ngram", "kv-int8")))
    heard = Heard()
    found = decide_several(msgspec.structs.replace(asked, resume=True), heard)
    assert (out / "ngram" / "blocks.jsonl").read_bytes() == first, "it was finished"
    assert (out / "suffix" / "blocks.jsonl").read_bytes().startswith(begun)
    assert sum(said.startswith("experiment:") for said in heard.said) == 1
    faster, equal = (one.analysis.e2e_median.ratio for one in found.outcomes)
    assert faster > 1.3 * equal
    assert [len(one.blocks) for one in found.outcomes] == [48, 48]
    silent = Heard()
    whole = decide_several(msgspec.structs.replace(asked, resume=True), silent)
    assert silent.said == ["judging"], "all was measured, so no server is started"
    assert candidates_document(whole).lines == candidates_document(found).lines


def test_a_candidate_that_does_not_start_costs_the_others_nothing(settings, tmp_path, leaves_no_process):
    found = decide_several(settings({"ngram": None, "suffix": TOKEN_S / 3}))
    assert [one.chosen for one in found.outcomes] == ["suffix"]
    assert found.outcomes[0].family is None, "nothing else was tried, so nothing is corrected"
    document = candidates_document(found)
    assert "did not start" in next(line.untried for line in document.lines if line.technique == "ngram")
    assert "did not start" in write_candidates(found, tmp_path / "out").read_text()
    with pytest.raises(Unavailable, match=r"(?s)ngram: .*suffix: "):
        decide_several(settings({"ngram": None, "suffix": None}, output=tmp_path / "none"))


@pytest.mark.slow
def test_a_budget_is_shared_and_what_it_does_not_reach_is_said(settings, tmp_path, leaves_no_process):
    """A budget for both, of which the first experiment takes nearly all, being much slower than what was recorded."""
    budget_s = 60.0
    found = decide_several(settings({"ngram": 0.35, "suffix": TOKEN_S}, budget_s=budget_s, candidates=2))
    assert [one.chosen for one in found.outcomes] == ["ngram"]
    account = found.outcomes[0].budget
    assert account.asked_s == budget_s / 2
    assert account.says[0].startswith("Its share of the budget")
    assert "too little was left" in found.untried["suffix"]
    document = candidates_document(found)
    assert document.adopted is None
    assert document.budget.asked_s == budget_s
    assert document.budget.spent_s == pytest.approx(account.spent_s)
    assert "keep the baseline" in document.headline


def test_one_of_the_named_is_tried_where_one_is_asked_for_and_its_files_are_the_usual_ones(settings, tmp_path):
    outcome = decide(settings({"ngram": TOKEN_S / 2}, candidates=1))
    assert outcome.chosen == "ngram", "it needs no package beside the engine"
    assert outcome.family is None
    assert outcome.analysis.verdict.confidence == 0.95
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "baseline.log",
        "blocks.jsonl",
        "candidate.log",
        "prepared.json",
        "records.jsonl",
    ]


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 1),
        ({"techniques": TRIED}, 2),
        ({"candidates": 3}, 3),
        ({"techniques": TRIED, "candidates": 1}, 1),
        ({"techniques": TRIED, "candidates": 5}, 2),
    ],
)
def test_how_many_are_tried(tmp_path, fields, most):
    assert Settings(output=tmp_path, **fields).most == most


def test_a_single_decision_refuses_several(settings):
    with pytest.raises(UsageError, match="decide_several"):
        decide(settings({}))

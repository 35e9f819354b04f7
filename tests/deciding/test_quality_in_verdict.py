"""What was measured of a candidate's quality reaches the verdict and the report, with its limits."""

from importlib import resources

import msgspec
import numpy as np
import pytest

from netgain.deciding.decide.narrate import Silence
from netgain.deciding.decide.promise_kept import judge_promise
from netgain.deciding.decide.quality import (
    WITHOUT_TASKS,
    Judged,
    check_files,
    conversations,
    for_verdict,
    judge_arms,
    limits_of,
    quality_ask,
)
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.quality_gate import QualityLimits, judge_quality
from netgain.deciding.report.html import render_html
from netgain.errors import UsageError
from netgain.measuring.quality.divergence import divergence
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.paired_scores import compare_scores
from netgain.measuring.quality.result import Quality, QualityComparison, ServerQuality
from netgain.measuring.quality.teacher_forcing import Scored
from netgain.measuring.quality.texts import Text
from tests.deciding.test_report import outcome_of, trial_of
from tests.measuring.quality.conftest import two_servers


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("torch")
    with two_servers(tmp_path_factory.mktemp("quality")) as started:
        yield started


def comparison(noise: float, tasks=None) -> QualityComparison:
    """Two servers over eight tokens; the second one's logits are off by `noise`."""
    generator = np.random.default_rng(0)
    sides: list[list[Scored]] = [[], []]
    for number in range(25):
        laws: list[list[Law]] = [[], []]
        for _ in range(100):
            logits = generator.normal(0.0, 2.0, 8)
            for own, shifted in zip(laws, (logits, logits + generator.normal(0.0, noise, 8)), strict=True):
                logprobs = shifted - np.log(np.exp(shifted).sum())
                own.append(Law("3", float(logprobs[3]), {str(t): float(v) for t, v in enumerate(logprobs)}))
        for side, own in zip(sides, laws, strict=True):
            text = Text(name=f"t{number}", category="x", prompt="some text")
            side.append(Scored(text=text, tokens=("",) * 101, laws=tuple(own)))
    apart = divergence(sides[0], sides[1], 8)
    assert not isinstance(apart, str)
    return QualityComparison(
        divergence=apart, divergence_missing=None, sameness=None, sameness_missing=None, tasks=tasks, tasks_missing=None
    )


@pytest.mark.parametrize(("noise", "state"), [(0.01, "held"), (1.0, "breached")])
def test_the_verdict_and_the_report_hold_what_was_measured_and_its_limits(
    make_record, noise: float, state: str
) -> None:
    tasks = compare_scores({str(n): 1.0 for n in range(400)}, {str(n): 1.0 for n in range(400)})
    found = comparison(noise, tasks)
    side = ServerQuality(url="u", model="m", perplexity=None, perplexity_missing="?", unscored=(), tasks=None)
    measured = Quality(
        netgain="0", began_unix_s=0.0, seconds=1.0, texts="bundled", task_file="my/set.jsonl", scorer=None,
        baseline=side, candidate=side, comparison=found,
    )  # fmt: skip
    held = for_verdict(
        Judged(measured=measured, gate=judge_quality(found, QualityLimits(tasks=False))), "lossy", None, None
    )
    assert held.state == state
    assert held.perplexity is not None
    assert held.divergence is not None
    assert held.divergence.state == state
    assert held.divergence.mean == found.divergence.kl.value
    assert (held.tasks[0].name, held.tasks[0].items, held.tasks[0].state) == ("set", 400, "held")
    page = render_html(msgspec.structs.replace(outcome_of(trial_of(make_record)), quality=held))
    assert "<h2>Quality</h2>" in page
    assert "task score of set, 400 tasks" in page
    assert "Quality holds" in page if state == "held" else "Quality is lost" in page


def test_a_promise_of_identical_tokens_is_not_judged_by_task_scores() -> None:
    worse = compare_scores({str(n): 1.0 for n in range(400)}, {str(n): float(n > 40) for n in range(400)})
    gate = judge_quality(comparison(0.0, worse))
    assert gate.state == "fail"
    identity = Identity(basis="token ids", compared=9, differing=(), baseline_differs=())
    held = for_verdict(Judged(measured=None, gate=gate), "token-identical", identity, None)
    assert held.state == "held"


def thirty_texts(folder) -> str:
    path = folder / "texts.jsonl"
    said = "says what texts of its length say, and then says a little more of it."
    path.write_text("\n".join(f'{{"text": "Text number {number} {said}"}}' for number in range(30)))
    return str(path)


async def test_a_disturbed_candidate_is_rejected_and_one_that_is_gone_is_doubted(served, tmp_path) -> None:
    """Two real servers, of which the second computes something else."""
    plain, disturbed = served
    settings = Settings(output=tmp_path, texts=thirty_texts(tmp_path), require_tasks=False)
    for candidate, doubts, losses in ((disturbed.url, 0, 1), (plain.url, 0, 0), ("http://127.0.0.1:9", 1, 0)):
        found = await judge_arms(quality_ask(plain.url, candidate, (), settings), Silence(), limits_of(settings))
        assert (len(found.doubts), len(found.losses)) == (doubts, losses), found.gate.says


@pytest.mark.parametrize("required", [None, True])
async def test_a_candidate_without_tasks_is_doubted_though_its_texts_hold(served, tmp_path, required) -> None:
    plain, _ = served
    settings = Settings(output=tmp_path, texts=thirty_texts(tmp_path), require_tasks=required)
    found = await judge_arms(quality_ask(plain.url, plain.url, (), settings), Silence(), limits_of(settings))
    assert (found.doubts, found.losses) == ((found.gate.says,), ())
    assert found.gate.says.startswith(
        "not enough evidence of quality: no task set was answered by both, and one is required"
    )
    assert found.caveat is None


async def test_who_goes_without_tasks_has_that_among_the_caveats(served, tmp_path) -> None:
    plain, _ = served
    settings = Settings(output=tmp_path, texts=thirty_texts(tmp_path), require_tasks=False)
    found = await judge_arms(quality_ask(plain.url, plain.url, (), settings), Silence(), limits_of(settings))
    kept = await judge_promise("lossy", (), (), {}, "netgain", "m", found)
    assert (kept.doubts, kept.losses) == ((), ())
    assert [one.says for one in kept.caveats("netgain")] == [WITHOUT_TASKS]


def test_tasks_that_are_required_are_the_users_own_not_those_of_a_bundled_workload(tmp_path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes((resources.files("netgain.measuring.workload.bundled") / "documents.jsonl").read_bytes())
    url = "http://127.0.0.1:9"
    for workload, required, some in (("documents", None, True), ("documents", True, False), (str(mine), True, True)):
        settings = Settings(output=tmp_path, workload=workload, require_tasks=required)
        assert bool(quality_ask(url, url, (), settings).tasks_given) is some
        assert limits_of(settings).tasks


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"tasks": "gone.jsonl"}, "gone.jsonl"), ({"texts": "gone.txt"}, "gone.txt"), ({"scorer": "true"}, "--tasks")],
)
def test_files_are_checked_before_any_server_starts(changes, said) -> None:
    with pytest.raises(UsageError, match=said):
        check_files(**{"texts": "bundled", "tasks": None, "scorer": None, **changes})


def test_recorded_conversations_are_prompt_and_answer_by_their_ids(make_record) -> None:
    record = make_record("p0", tokens=3, output=(7, 8, 9))
    assert record.server is not None
    known = msgspec.structs.replace(record, server=msgspec.structs.replace(record.server, prompt_ids=(1, 2)))
    unknown = msgspec.structs.replace(record, server=msgspec.structs.replace(record.server, prompt_ids=None))
    (text,) = conversations([known, unknown, make_record("p1", error="refused")])
    assert (text.name, text.prompt) == ("recorded-p0", (1, 2, 7, 8, 9))

"""Nothing lossy passes unless a whole interval lies within the limits; planted losses fail; little evidence is not enough."""

import math

import numpy as np
import pytest

from netgain.deciding.experiment.quality_gate import QualityLimits, judge_quality
from netgain.errors import UsageError
from netgain.measuring.quality.divergence import divergence
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.paired_scores import compare_scores
from netgain.measuring.quality.result import QualityComparison
from netgain.measuring.quality.teacher_forcing import Scored
from netgain.measuring.quality.texts import Text

TEXTS_ALONE = QualityLimits(tasks=False)


def laws(noise: float, texts: int, positions: int, offset: float = 0.0) -> list[Scored]:
    """Laws over eight tokens, the same but for `noise` on every logit; `offset` makes the token that stands there less likely."""
    generator, disturbing = np.random.default_rng(0), np.random.default_rng(1)
    found = []
    for number in range(texts):
        own = []
        for _ in range(positions):
            logits = generator.normal(0.0, 2.0, 8)
            token = int(generator.integers(8))
            logits = logits + disturbing.normal(0.0, noise, 8) if noise else logits
            logits[token] -= offset
            logprobs = logits - np.log(np.exp(logits).sum())
            own.append(Law(str(token), float(logprobs[token]), {str(t): float(v) for t, v in enumerate(logprobs)}))
        text = Text(name=f"t{number}", category="x", prompt="...")
        found.append(Scored(text=text, tokens=("",) * (positions + 1), laws=tuple(own)))
    return found


def comparison(noise: float = 0.0, texts: int = 25, positions: int = 100, offset: float = 0.0, tasks=None):
    apart = divergence(laws(0.0, texts, positions), laws(noise, texts, positions, offset), 8)
    assert not isinstance(apart, str)
    return QualityComparison(
        divergence=apart,
        divergence_missing=None,
        sameness=None,
        sameness_missing=None,
        tasks=tasks,
        tasks_missing=None,
    )


def scores(items: int, lost: int):
    before = {str(n): 1.0 for n in range(items)}
    return compare_scores(before, {name: float(n >= lost) for n, name in enumerate(before)})


def test_an_equal_candidate_passes_and_says_what_was_not_tried() -> None:
    found = judge_quality(comparison(), TEXTS_ALONE)
    assert found.state == "pass"
    assert "no task set was given" in found.says
    assert [one.state for one in found.findings] == ["held"] * 4


@pytest.mark.parametrize(("planted", "named"), [({"noise": 0.5}, "KL at least"), ({"offset": 0.2}, "perplexity")])
def test_a_planted_loss_fails_by_the_figure_that_shows_it(planted: dict[str, float], named: str) -> None:
    found = judge_quality(comparison(**planted))
    assert found.state == "fail"
    assert named in found.says


def test_the_same_equality_over_little_text_is_not_enough() -> None:
    for little in ({"texts": 5}, {"positions": 10}):
        found = judge_quality(comparison(**little), TEXTS_ALONE)
        assert found.state == "not enough"
        assert "too little" in found.says


def test_a_loss_between_the_limits_is_not_enough_either_way() -> None:
    limits = QualityLimits(
        kl_mean=comparison(noise=0.3).divergence.kl.value, same_first=0.0, kl_p99=9.0, perplexity_ratio=9.0
    )
    assert judge_quality(comparison(noise=0.3), limits).state == "not enough"


def test_unmeasured_quality_is_not_enough() -> None:
    assert judge_quality(None).state == "not enough"
    nothing = QualityComparison(
        divergence=None,
        divergence_missing="no log-probabilities of prompts",
        sameness=None,
        sameness_missing=None,
        tasks=None,
        tasks_missing="none",
    )
    found = judge_quality(nothing)
    assert found.state == "not enough"
    assert "no log-probabilities of prompts" in found.says


def test_a_small_task_set_is_not_enough_and_says_how_many_would_be() -> None:
    found = judge_quality(comparison(tasks=scores(50, 0)))
    assert found.state == "not enough"
    assert "381 would show" in found.says
    assert judge_quality(comparison(tasks=scores(381, 0))).state == "pass"


def test_a_baseline_that_solves_nothing_shows_nothing_of_what_is_lost() -> None:
    """Case of LMCache/LMCache#4666: blending without a gate of the model, here of a model that is too weak for one."""
    weak = {str(n): float(n < 4) for n in range(400)}
    found = judge_quality(comparison(tasks=compare_scores(weak, weak)))
    assert found.state == "not enough"
    assert "model too weak to judge" in found.says
    enough = {str(n): float(n < 5) for n in range(400)}
    assert judge_quality(comparison(tasks=compare_scores(enough, enough))).state == "pass"


def test_a_shown_loss_of_task_scores_fails_though_the_texts_hold() -> None:
    found = judge_quality(comparison(tasks=scores(400, 20)))
    assert found.state == "fail"
    assert "task score 100.0% -> 95.0%" in found.says


def test_tasks_without_a_score_may_hide_a_loss() -> None:
    before = {str(n): 1.0 for n in range(450)}
    after = {name: None if n < 50 else 1.0 for n, name in enumerate(before)}
    found = judge_quality(comparison(tasks=compare_scores(before, after)))
    assert found.state == "not enough"
    assert "50 of 450 tasks have no score" in found.says


def test_a_task_set_is_required_before_anything_passes_unless_the_user_goes_without() -> None:
    found = judge_quality(comparison())
    assert found.state == "not enough"
    assert "--tasks FILE" in found.says
    assert judge_quality(comparison(), TEXTS_ALONE).state == "pass"


@pytest.mark.parametrize("wrong", [{"perplexity_ratio": 0.9}, {"kl_mean": 0.0}, {"same_first": 2.0}, {"texts": 1}])
def test_limits_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        QualityLimits(**wrong)


def test_a_single_text_has_no_interval_and_shows_nothing() -> None:
    found = judge_quality(comparison(texts=1, positions=3000), QualityLimits(texts=2, tasks=False))
    assert found.state == "not enough"
    assert all(math.isfinite(one.value) for one in found.findings)


def test_an_equality_that_does_not_show_the_loss_passes_nothing() -> None:
    found = judge_quality(comparison(tasks=scores(300, 0)), QualityLimits(unseen="nothing came through the codec"))
    assert found.state == "not enough"
    assert "nothing came through the codec" in found.says

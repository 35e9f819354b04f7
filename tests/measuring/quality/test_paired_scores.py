"""The statistics of paired scores, against enumeration of everything that could have happened."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.quality.paired_scores import compare_scores, mcnemar, tango_interval, tango_score


def paired(items: int, lost: int, won: int, margin: float = 0.01):
    baseline = {f"t{n}": float(n < items // 2 + lost) for n in range(items)}
    candidate = dict(baseline)
    for n in range(lost):
        candidate[f"t{n}"] = 0.0
    for n in range(won):
        candidate[f"t{items - 1 - n}"] = 1.0
    return compare_scores(baseline, candidate, margin)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (5, 0), (3, 2), (9, 4), (4, 4)])
def test_mcnemar_is_the_share_of_splits_at_least_as_uneven(lost: int, won: int) -> None:
    splits = list(itertools.product((0, 1), repeat=lost + won))
    uneven = sum(abs(2 * sum(split) - len(split)) >= abs(lost - won) for split in splits)
    assert mcnemar(lost, won) == pytest.approx(uneven / len(splits), rel=1e-12)


@pytest.mark.parametrize("items", [40, 120])
@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_an_arm_that_is_worse_by_the_margin_is_called_not_worse_at_most_as_often_as_promised(
    items: int, margin: float
) -> None:
    """Exact: every table that can come out, with its trinomial probability, over a range of discordance."""
    tables = [(lost, won) for lost in range(items + 1) for won in range(items + 1 - lost)]
    passing = [(lost, won) for lost, won in tables if tango_score(-margin, items, lost, won) > 1.959964]
    for share_won in (0.0, 0.005, 0.02, 0.05, 0.1):
        share_lost = share_won + margin
        same = 1.0 - share_won - share_lost
        wrong = 0.0
        for lost, won in passing:
            ways = math.comb(items, lost) * math.comb(items - lost, won)
            wrong += ways * share_lost**lost * share_won**won * same ** (items - lost - won)
        assert wrong <= 0.033  # nominal 0.025; a score test is a little off at such sizes


@given(st.integers(1, 300), st.data())
def test_the_interval_ends_where_the_test_does(items: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, items))
    won = data.draw(st.integers(0, items - lost))
    low, high = tango_interval(items, lost, won)
    assert -1.0 <= low <= (won - lost) / items <= high <= 1.0
    for end, quantile in ((low, 1.959964), (high, -1.959964)):
        if abs(end) < 0.999:
            assert tango_score(end, items, lost, won) == pytest.approx(quantile, abs=1e-3)


def test_a_small_set_without_a_single_difference_shows_nothing_and_says_how_many_would() -> None:
    few = paired(40, 0, 0)
    assert few.state == "too few"
    assert paired(few.needed, 0, 0).state == "not worse"
    assert paired(few.needed - 1, 0, 0).state == "too few"


def test_a_clear_loss_is_worse_and_a_clear_tie_is_not() -> None:
    assert paired(200, 30, 4).state == "worse"
    assert paired(4000, 20, 22).state == "not worse"
    lost_few = paired(200, 3, 0)
    assert lost_few.state == "too few"
    assert lost_few.p == 0.25


def test_needed_tasks_would_show_an_equal_candidate_four_times_in_five() -> None:
    found = paired(400, 10, 10, margin=0.02)
    draw = np.random.default_rng(0).multinomial(found.needed, [0.025, 0.025, 0.95], size=300)
    shown = sum(tango_interval(found.needed, int(lost), int(won))[0] > -0.02 for lost, won, _ in draw)
    assert 0.72 <= shown / 300 <= 0.88


def test_scores_that_are_unknown_in_either_arm_are_left_out() -> None:
    found = compare_scores({"a": 1.0, "b": None, "c": 0.0}, {"a": 1.0, "b": 1.0, "d": 1.0})
    assert found is not None
    assert (found.items, found.left_out) == (1, 3)
    assert compare_scores({"a": None}, {"a": 1.0}) is None


def test_graded_scores_are_resampled_and_few_differences_show_nothing() -> None:
    generator = np.random.default_rng(1)
    before = generator.uniform(0.3, 0.9, 400)
    same = dict(zip(map(str, range(400)), before + generator.normal(0.0, 0.02, 400), strict=True))
    worse = dict(zip(map(str, range(400)), before - 0.05 + generator.normal(0.0, 0.02, 400), strict=True))
    baseline = dict(zip(map(str, range(400)), before, strict=True))
    kept = compare_scores(baseline, same)
    lost = compare_scores(baseline, worse)
    assert kept is not None
    assert lost is not None
    assert (kept.state, lost.state) == ("not worse", "worse")
    assert kept.p is None
    equal = compare_scores(dict.fromkeys(map(str, range(30)), 0.5), dict.fromkeys(map(str, range(30)), 0.5))
    assert equal is not None
    assert equal.state == "too few"
    assert equal.low == pytest.approx(0.025 ** (1 / 30) - 1)
    assert equal.needed > 30

"""Where drafts break even, over curves whose truth is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.break_even import DraftPrice, break_even, speedup_of, surface, survival_of
from netgain.cost.step_cost import StepCost, StepPoint
from netgain.errors import UsageError


def curve(per_token: float = 0.25, batches=(1, 2, 4), tokens=9, context=0) -> StepCost:
    """A step of n tokens per request costs 1 + per_token * batch * (n - 1) ms."""
    return StepCost(
        points=tuple(
            StepPoint(batch=batch, tokens=n, context=context, seconds=1e-3 * (1 + per_token * batch * (n - 1)))
            for batch in batches
            for n in range(1, tokens + 1)
        )
    )


@given(st.integers(1, 8), st.floats(1.001, 8.0))
def test_at_break_even_a_step_commits_exactly_what_it_needs(k, needed):
    found = break_even(k, needed)
    if found is None:
        assert needed > k + 1
    else:
        assert 1 + sum(survival_of(found, k)) == pytest.approx(needed, rel=1e-9)
        assert speedup_of(survival_of(found, k), needed, 0.0) == pytest.approx(1.0, rel=1e-9)


@given(st.floats(0.05, 0.95), st.floats(0.0, 0.4))
def test_a_surface_is_above_one_just_where_acceptance_is_above_break_even(acceptance, share):
    found = surface(
        curve(), acceptances=[acceptance], lengths=range(1, 9), batches=[1, 2, 4], price=DraftPrice(share=share)
    )
    for plane in found.planes:
        for column in plane.columns:
            above = column.break_even is not None and acceptance > column.break_even
            assert (column.speedups[0] > 1) == above or column.speedups[0] == pytest.approx(1.0)


def test_the_speedup_is_tokens_over_the_wider_step_and_its_drafts():
    found = surface(curve(0.1), acceptances=[0.5], lengths=[2], batches=[2], price=DraftPrice(share=0.05))
    column = found.column(2, 2)
    assert column.verify == pytest.approx(1.4)
    assert column.needed == pytest.approx(1.5)
    assert column.speedups == (pytest.approx(1.75 / 1.5),)
    assert column.step_s == pytest.approx(1.4e-3)
    assert "synthetic acceptance" in found.label


def test_heads_that_draft_in_one_pass_pay_for_one():
    each, once = (DraftPrice(share=0.2, one_pass=one) for one in (False, True))
    assert (each.of(4), once.of(4), once.of(0)) == (pytest.approx(0.8), pytest.approx(0.2), 0.0)
    assert surface(curve(), price=once, batches=[1]).column(1, 4).drafting == pytest.approx(0.2)


def test_drafts_that_cannot_pay_even_if_all_stand_have_no_break_even():
    found = surface(curve(1.5), lengths=[1, 4], batches=[1])
    assert [column.break_even for column in found.planes[0].columns] == [None, None]
    assert found.planes[0].best(len(found.acceptances) - 1) is None


def test_the_best_length_grows_with_acceptance():
    plane = surface(curve(0.2), acceptances=[0.1, 0.5, 0.95], lengths=[1, 2, 4, 8], batches=[1]).planes[0]
    assert plane.best(0) is None
    assert plane.best(1).k < plane.best(2).k == 8


def test_what_was_not_measured_is_never_extrapolated():
    found = surface(curve(tokens=5, batches=(1, 4)), lengths=[2, 6], batches=[1, 2, 8])
    assert [[column is not None for column in plane.columns] for plane in found.planes] == [
        [True, False],
        [True, False],  # between batches that were measured
        [False, False],
    ]
    assert found.planes[2].plain_s is None
    assert found.known
    assert not surface(curve(tokens=1), batches=[1]).known


def test_costs_at_another_context_are_said_to_be():
    assert surface(curve(context=0), batches=[1], context=256).nearest_context
    assert not surface(curve(context=256), batches=[1], context=256).nearest_context


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"acceptances": [1.5]}, "acceptance of 1.5"),
        ({"acceptances": []}, "no acceptance"),
        ({"lengths": [0]}, "number of drafts of 0"),
        ({"batches": [0]}, "batch of 0"),
        ({"price": DraftPrice(share=-1.0)}, "decode step"),
        ({"acceptances": [float("nan")]}, "acceptance of nan"),
    ],
)
def test_impossible_values_are_refused(asked, reason):
    with pytest.raises(UsageError, match=reason):
        surface(curve(), **asked)

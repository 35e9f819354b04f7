"""Synthetic acceptance in a real engine: what is counted is what was asked for."""

import pytest

from netgain.errors import UsageError
from netgain.serving.training.synthetic_check import SyntheticCheck


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    from tests.exactness.test_tiny_models import random_model

    model = {"source": str(random_model(tmp_path_factory.mktemp("small"), "llama")), "threads": 1}
    with SyntheticCheck(model, 2) as found:
        yield found


@pytest.fixture(scope="module")
def cost(engines):
    return engines.curve(0.5)


def test_tokens_per_step_are_those_of_the_given_acceptance(engines, cost):
    said = []
    asked = {"context": 32, "tokens": 48, "rounds": 3}
    found = engines.check(cost, (0.0, 1.0), 3, (1, 2), tell=lambda what, share: said.append(share), **asked)
    assert [(one.batch, one.acceptance) for one in found] == [(1, 0.0), (1, 1.0), (2, 0.0), (2, 1.0)]
    for one in found:
        assert one.predicted_committed == one.measured_committed == (1.0 if one.acceptance == 0.0 else 4.0)
        assert one.lowest <= one.measured_speedup <= one.highest
        assert one.predicted_speedup == pytest.approx(one.predicted_committed / one.predicted_verify)
        assert one.measured_plain_s > 0
        assert one.rounds == 3
    # 47 tokens behind the first: 45 steps of one token before the last, which have room for three drafts; 12 steps of four
    assert [one.steps for one in found[:2]] == [3 * 44, 3 * 11]
    assert said[-1] == 1.0


def test_random_acceptance_comes_near_what_was_asked(engines, cost):
    (found,) = engines.check(cost, (0.6,), 2, (2,), context=96, tokens=128, rounds=3)
    assert found.measured_committed == pytest.approx(found.predicted_committed, abs=0.15)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"batches": (4,)}, "more than the 2"),
        ({"tokens": 4}, "too short"),
        ({"tokens": 900}, "room for"),
    ],
)
def test_what_cannot_be_checked_is_refused(engines, cost, asked, reason):
    given = {"batches": (1,), "tokens": 48} | asked
    with pytest.raises(UsageError, match=reason):
        engines.check(cost, (0.5,), 3, given["batches"], context=32, tokens=given["tokens"], rounds=1)

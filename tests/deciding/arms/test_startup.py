"""In which order servers are started: none keeps to one place, since what is started first may be slower."""

from collections import Counter

import pytest

from netgain.deciding.experiment.arms.startup import starting_order


def test_two_arms_are_first_in_turns():
    assert [starting_order(("a", "b"), start)[0] for start in range(6)] == ["a", "b"] * 3


def test_of_three_arms_each_has_each_place_as_often():
    """With a control, the candidate was the second to be started in every start, and the baseline first in half of them."""
    orders = [starting_order(("baseline", "candidate", "control"), start) for start in range(6)]
    assert orders[0] == ("baseline", "candidate", "control"), "as the first start brings them up"
    for place in range(3):
        assert Counter(order[place] for order in orders) == dict.fromkeys(orders[0], 2)


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_in_every_two_starts_each_arm_is_before_each_other_once(arms):
    names = tuple("abcd"[:arms])
    for first in range(0, 10, 2):
        assert starting_order(names, first) == starting_order(names, first + 1)[::-1]

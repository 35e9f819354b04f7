"""What a step hides of a transfer is learnt from steps that hid one, and looked at again where little was hidden."""

import pytest

from netgain.serving.engine.known_links import KnownLinks, Lookups
from netgain.serving.engine.load_choice import Hiding


def test_a_transfer_that_makes_the_step_longer_is_hidden_so_much_less() -> None:
    hiding = Hiding()
    assert hiding.share == 1.0, "not known yet"
    for lost_s in (0.02, 0.03, 0.04):
        hiding.observed(0.1, lost_s)
    assert hiding.share == pytest.approx(0.7)


def test_a_step_is_never_said_to_hide_more_than_all_or_less_than_nothing() -> None:
    hiding = Hiding()
    for lost_s in (-1.0, 5.0, 5.0):
        hiding.observed(0.1, lost_s)
    assert hiding.share == 0.0
    for _ in range(3):
        hiding.observed(0.1, -1.0)
    assert hiding.share == 1.0


def test_where_nothing_is_hidden_it_is_tried_again_after_many_loads() -> None:
    hiding = Hiding()
    for _ in range(3):
        hiding.observed(0.1, 0.1)
    shares = []
    for _ in range(60):
        hiding.asked()
        shares.append(hiding.share)
    assert shares[:50] == [0.0] * 50
    assert shares[50:] == [1.0] * 10
    hiding.observed(0.1, 0.1)
    assert hiding.share == 0.0


def test_a_question_is_worth_it_while_answers_come_sooner_than_computing_or_are_long_ago() -> None:
    lookups = Lookups(every_s=10.0)
    assert lookups.worth(0.0, 0.0), "never asked"
    lookups.asked(0.0)
    lookups.answered(0.2)
    assert not lookups.worth(0.1, 9.0)
    assert lookups.worth(0.2, 9.0)
    assert lookups.worth(0.1, 10.0)


def test_one_load_learns_a_link_and_an_idle_one_is_measured_again() -> None:
    links = KnownLinks(every_s=10.0)
    links.learns([0, 1])
    assert links.learning([1, 2])
    assert not links.learning([2])
    links.learnt([0, 1])
    assert not links.learning([0, 1])
    assert not links.remeasures(0, 100.0), "it was just found to be slow"
    links.sampled([0], 105.0)
    assert not links.remeasures(0, 112.0)
    assert links.remeasures(0, 115.1)
    assert not links.remeasures(0, 116.0)

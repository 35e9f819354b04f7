"""The router's one rule."""

from netgain.serving.fleet.router import Candidate, FewestInFlight


def test_the_least_loaded_gets_the_request_and_the_first_among_equals():
    policy = FewestInFlight()
    assert policy.choose([Candidate("a", 3), Candidate("b", 1), Candidate("c", 1)]).name == "b"
    assert policy.choose([Candidate("a", 0)]).name == "a"

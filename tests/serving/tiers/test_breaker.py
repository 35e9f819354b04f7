"""The breaker lets nobody wait twice for a server that is gone, and finds it again by itself."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.breaker import Breaker, State


def test_one_failure_opens_and_a_good_probe_closes() -> None:
    breaker = Breaker(open_s=1.0)
    breaker.failed(10.0)
    assert not breaker.allows()
    assert not breaker.take_probe(10.9)
    assert breaker.take_probe(11.0)
    assert not breaker.take_probe(11.0), "one probe at a time"
    assert not breaker.allows(), "requests do not wait for the probe"
    breaker.probed(True, 11.1)
    assert breaker.allows()


def test_failed_probes_wait_twice_as_long_up_to_a_limit() -> None:
    breaker = Breaker(open_s=1.0, longest_open_s=5.0)
    now_s = 0.0
    breaker.failed(now_s)
    waits = []
    for _ in range(5):
        began_s = now_s
        while not breaker.take_probe(now_s):
            now_s += 0.25
        waits.append(now_s - began_s)
        breaker.probed(False, now_s)
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(failures=2)
    for _ in range(5):
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.allows()
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert not breaker.allows()


@given(st.lists(st.sampled_from(["fail", "succeed", "wait", "probe", "well", "ill"])))
def test_calls_pass_only_when_closed_and_there_is_a_way_back(events: list[str]) -> None:
    breaker, now_s = Breaker(), 0.0
    for event in events:
        if event == "fail":
            breaker.failed(now_s)
        elif event == "succeed":
            breaker.succeeded()
        elif event == "wait":
            now_s += 0.7
        elif event == "probe":
            breaker.take_probe(now_s)
        else:
            breaker.probed(event == "well", now_s)
        assert breaker.allows() == (breaker.state is State.CLOSED)
    breaker.take_probe(now_s + 100)
    breaker.probed(True, now_s + 100)
    assert breaker.allows()

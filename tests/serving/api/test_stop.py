"""Stop strings do not depend on how the text is cut, and hold back no more than they must."""

import time

from hypothesis import example, given
from hypothesis import strategies as st

from netgain.serving.api.stop import StopMatcher

TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))], True
    return text, False


@given(TEXT, STOPS, st.lists(st.integers(1, 5), min_size=1, max_size=10))
@example("abab", ["abb", "ba"], [1])
@example("aaab", ["aab"], [2])
def test_any_cutting_gives_the_text_before_the_first_complete_stop(text, stops, cuts):
    matcher = StopMatcher(stops)
    released, stopped = "", False
    at = number = 0
    while at < len(text) and not stopped:
        size = cuts[number % len(cuts)]
        part = matcher.feed(text[at : at + size])
        released += part.text
        stopped = part.stop is not None
        at += size
        number += 1
    if not stopped:
        released += matcher.finish()
    assert (released, stopped) == expected(text, stops)


def test_only_what_may_begin_a_stop_is_held_back():
    matcher = StopMatcher(["een la"])
    assert matcher.feed("one gre").text == "one gr"
    assert matcher.feed("y").text == "ey"
    assert matcher.feed(" een l").text == " "
    assert matcher.finish() == "een l"


def test_without_stops_nothing_is_held_back():
    assert StopMatcher([]).feed("abc").text == "abc"


def test_long_stop_strings_that_nearly_match_cost_little():
    """Whoever sends sixteen of them would slow down everybody's streams."""
    stops = [letter + "a" * 1023 for letter in "bcdefghijklmnop"] + ["a" * 1023 + "z"]
    matcher = StopMatcher(stops)
    matcher.feed("a" * 1022)
    began = time.process_time()
    for _ in range(200):
        assert len(matcher.feed("a").text) <= 1
    assert time.process_time() - began < 0.2

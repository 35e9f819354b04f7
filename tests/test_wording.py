"""Messages count in words that a reader does not stumble over."""

import pytest

from netgain.wording import brief, count


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (1200, "1200 requests")]
)
def test_only_one_of_a_thing_is_singular(number: int, said: str) -> None:
    assert count(number, "request") == said


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(120.0, 2, "120"), (99.6, 2, "100"), (1000.0, 3, "1,000"), (12.34, 3, "12.3"), (0.017, 2, "0.017"), (0.0, 2, "0")],
)
def test_a_large_number_has_no_exponent(value: float, digits: int, said: str) -> None:
    assert brief(value, digits) == said

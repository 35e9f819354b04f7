"""Messages count in words that a reader does not stumble over."""

import pytest

from netgain.wording import count


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 requests"), (1, "1 request"), (2, "2 requests"), (1200, "1200 requests")]
)
def test_only_one_of_a_thing_is_singular(number: int, said: str) -> None:
    assert count(number, "request") == said

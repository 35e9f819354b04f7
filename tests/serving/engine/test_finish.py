import pytest

from netgain.serving.engine.finish import drafts_kept, truncate

STOP = frozenset({9})


@pytest.mark.parametrize(
    ("tokens", "remaining", "kept", "reason"),
    [
        ((1, 2, 3), 10, (1, 2, 3), None),
        ((1, 2, 3), 3, (1, 2, 3), "length"),
        ((1, 2, 3), 2, (1, 2), "length"),
        ((9, 2, 3), 10, (9,), "stop"),
        ((1, 9, 3), 10, (1, 9), "stop"),
        ((1, 2, 9), 3, (1, 2, 9), "stop"),
        ((1, 2, 9), 2, (1, 2), "length"),
        ((9, 9), 1, (9,), "stop"),
        ((), 1, (), None),
    ],
)
def test_output_ends_at_the_first_stop_or_at_its_length(tokens, remaining, kept, reason):
    assert truncate(tokens, remaining, STOP) == (kept, reason)


@pytest.mark.parametrize("remaining", [0, -1])
def test_a_complete_output_cannot_grow(remaining):
    with pytest.raises(ValueError, match="complete"):
        truncate((1,), remaining, STOP)


@pytest.mark.parametrize(
    ("drafts", "kept", "count"),
    [((), (5,), 0), ((1, 2), (1, 2, 7), 2), ((1, 2), (1, 7), 1), ((1, 2), (7,), 0), ((1, 9, 3), (1, 9), 2)],
)
def test_drafts_kept_counts_only_what_is_in_the_output(drafts, kept, count):
    assert drafts_kept(drafts, kept) == count

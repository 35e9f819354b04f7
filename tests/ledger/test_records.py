"""Draft counts: right denominators per position and per length, whatever numbers come in."""

from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.ledger.records import DraftCounts


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 8)), max_size=50))
def test_acceptance_stays_between_zero_and_one(steps: list[tuple[int, int]]) -> None:
    counts = DraftCounts()
    for drafted, accepted in steps:
        counts.add(drafted, accepted)
    valid = [(k, a) for k, a in steps if 0 <= a <= k]
    assert counts.steps == len(valid)
    assert counts.refused == len(steps) - len(valid)
    assert sum(counts.drafted) == sum(k for k, _ in valid)
    assert sum(counts.accepted) == sum(a for _, a in valid)
    assert all(0 <= a <= d for d, a in zip(counts.drafted, counts.accepted, strict=True))
    assert counts.accepted == sorted(counts.accepted, reverse=True)
    for length, histogram in counts.by_length.items():
        assert len(histogram) == length + 1
        assert sum(histogram) == sum(1 for k, _ in valid if k == length)


def test_positions_count_only_drafts_that_reached_them() -> None:
    counts = DraftCounts()
    counts.add(3, 2)
    counts.add(1, 1)
    assert (counts.drafted, counts.accepted) == ([2, 1, 1], [2, 1, 0])
    assert counts.by_length == {3: [0, 0, 1, 0], 1: [0, 1]}


def test_steps_of_another_length_are_in_no_denominator() -> None:
    """sgl-project/sglang#34814 counted steps x width where widths vary."""
    counts = DraftCounts()
    for drafted, accepted in ((4, 4), (4, 0), (2, 2), (1, 0)):
        counts.add(drafted, accepted, ended=drafted == 2)
    assert counts.acceptance == (2 / 4, 2 / 3, 1 / 2, 1 / 2)
    means = counts.by_length_means
    assert list(means) == [1, 2, 4]
    assert [mean.acceptance for mean in means.values()] == [0.0, 1.0, 0.5]
    assert [mean.kept_per_step for mean in means.values()] == [0.0, 2.0, 2.0]
    assert counts.committed == 5 + 1 + 2 + 1  # the step that ended the text added no token of its own
    assert DraftCounts().acceptance == ()


ADDED = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=20)


@settings(deadline=None)
@given(ADDED, ADDED)
def test_merged_counts_are_those_of_all_steps_together(first, second) -> None:
    def counted(steps) -> DraftCounts:
        counts = DraftCounts()
        for drafted, accepted, ended in steps:
            counts.add(drafted, accepted, ended=ended)
        return counts

    merged = counted(first)
    merged.merge(counted(second))
    assert merged == counted([*first, *second])

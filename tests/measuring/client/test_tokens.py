"""One rule per request says how many tokens each chunk carried."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.client.tokens import Arrival, count_tokens


def texts(*chunks: tuple[float, int, int | None]) -> list[Arrival]:
    return [Arrival(at_s, length, length, running) for at_s, length, running in chunks]


def test_running_usage_is_a_total_and_not_added_up() -> None:
    count = count_tokens(texts((0.0, 0, 0), (0.1, 4, 1), (0.2, 16, 5), (0.3, 16, 9)), 9)
    assert (count.times_s, count.tokens, count.total, count.source) == ((0.1, 0.2, 0.3), (1, 4, 4), 9, "usage")


def test_a_token_without_text_is_a_token_where_the_server_counts_it() -> None:
    count = count_tokens(texts((0.0, 0, 0), (0.1, 0, 1), (0.2, 3, 2)), 2)
    assert count.times_s == (0.1, 0.2)
    assert count.first_text_s == 0.2


def test_the_end_token_that_only_the_last_count_shows_moves_no_time() -> None:
    count = count_tokens(texts((0.1, 4, 1), (0.2, 4, 2)), 3)
    assert (count.times_s, count.tokens, count.total) == ((0.1, 0.2), (1, 2), 3)


def test_a_final_total_is_spread_by_length_of_text() -> None:
    count = count_tokens(texts((0.0, 4, None), (0.1, 16, None), (0.2, 16, None)), 9)
    assert (count.tokens, count.source) == ((1, 4, 4), "total")


def test_without_any_count_a_chunk_is_a_token_and_says_so() -> None:
    count = count_tokens(texts((0.0, 4, None), (0.1, 4, None)), None)
    assert (count.tokens, count.total, count.source) == ((1, 1), 2, "chunks")
    assert count_tokens(texts((0.0, 4, None), (0.1, 4, None)), None, recounted=5).source == "text"


def test_no_text_and_no_count_is_unknown_and_not_zero() -> None:
    count = count_tokens([], None)
    assert (count.total, count.source, count.times_s) == (None, None, ())
    assert count_tokens([], 0).total == 0


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 400))
def test_spread_tokens_add_up(lengths: list[int], total: int) -> None:
    count = count_tokens(texts(*((float(at), length, None) for at, length in enumerate(lengths))), total)
    assert sum(count.tokens) == total
    assert count.tokens[0] == (1 if len(lengths) > 1 else total)
    if total >= len(lengths):
        assert min(count.tokens) >= 1

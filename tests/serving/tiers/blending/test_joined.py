"""Chunks are found in a prompt that was tokenised whole."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.blending.joined import Chunks, find_spans

TOKENS = st.lists(st.integers(0, 50_000), min_size=6, max_size=30)


@given(st.lists(TOKENS, min_size=1, max_size=5), TOKENS, TOKENS)
def test_chunks_side_by_side_are_found_whole_and_apart(chunks, before, behind):
    prompt = [*(60_000 + token for token in before), *itertools.chain(*chunks), *(60_000 + token for token in behind)]
    spans = find_spans(prompt, chunks)
    assert Chunks(spans=spans).check(len(prompt)) is None
    found = sorted(tuple(prompt[first:end]) for first, end in spans)
    assert len(found) == len(chunks)
    assert sum(map(len, found)) <= sum(map(len, chunks))


def test_tokens_at_the_edges_may_be_others():
    prompt = [1, 2, 99, 11, 12, 13, 14, 98, 3]
    assert find_spans(prompt, [[10, 11, 12, 13, 14, 15]]) == ((3, 7),)
    assert find_spans(prompt, [[11, 12, 13, 14]]) == ((3, 7),)


def test_a_chunk_given_twice_is_looked_for_twice():
    chunk = [5, 6, 7, 8]
    assert find_spans([*chunk, 1, *chunk], [chunk, chunk]) == ((0, 4), (5, 9))
    with pytest.raises(ValueError, match="1: "):
        find_spans([*chunk, 1], [chunk, chunk])


def test_a_chunk_is_not_found_between_the_bytes_of_tokens():
    with pytest.raises(ValueError, match="0: its 1 tokens do not stand"):
        find_spans([0x01000000, 0x02000000], [[0x02]])


def test_order_does_not_matter_and_spans_ascend():
    assert find_spans([1, 2, 3, 4, 5, 6], [[5, 6], [1, 2]]) == ((0, 2), (4, 6))


@pytest.mark.parametrize("spans", [((0, 3), (2, 4)), ((3, 3),), ((-1, 2),), ((2, 11),)])
def test_spans_that_overlap_or_leave_the_prompt_are_refused(spans):
    assert "does not lie" in Chunks(spans=spans).check(10)

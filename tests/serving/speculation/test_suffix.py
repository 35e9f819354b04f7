import tracemalloc
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.speculation.suffix_index import (
    ANCHORS,
    BYTES_PER_TOKEN,
    ENOUGH,
    OCCURRENCES,
    SEPARATOR,
    SuffixIndex,
)
from tests.serving.speculation import asking

K = 6


def proposed(proposer, tokens, limit=99, **who):
    return asking.draft(proposer, tokens, limit, asking.request(**who)).tokens


def match_lengths(text, ending, depth, last):
    """By definition: (end, length) of every earlier occurrence of at least two tokens of `ending` in `text`."""
    found = []
    for end in range(last):
        length = 0
        while length < min(depth, len(ending)) and length <= end and text[end - length] == ending[-1 - length]:
            length += 1
        if length >= ANCHORS[0]:
            found.append((end, length))
    long = [pair for pair in found if pair[1] >= ANCHORS[1]]
    return long or found


def by_definition(text, ending, found, limit, options, goes_on):
    """The tree's answer for every match length, as counts over all occurrences of that length."""
    best, score = (), 0.0
    for length in sorted({length for _, length in found}, reverse=True):
        live = [end for end, matched in found if matched >= length]
        total, path, earned = len(live), [], 0.0
        while len(path) < min(limit, int(length * options.factor)):
            following = {}
            for end in live:
                place = end + len(path) + 1
                token = text[place] if place < len(text) else path[place - len(text)] if goes_on else SEPARATOR
                if token != SEPARATOR:
                    following.setdefault(token, []).append(end)
            if not following:
                break
            token = min(following, key=lambda t: (-len(following[t]), min(following[t])))
            if len(following[token]) / total < options.min_probability:
                break
            earned += len(following[token]) / total
            path.append(token)
            live = following[token]
        if earned > score:
            best, score = tuple(path), earned
    return best, score


small_texts = st.lists(st.integers(0, 3), min_size=2, max_size=40)
options = st.builds(
    SuffixOptions, factor=st.sampled_from([0.5, 1.0, 2.0]), min_probability=st.sampled_from([0.01, 0.3, 0.6, 1.0])
)


@settings(max_examples=200, deadline=None)
@given(tokens=small_texts, given_options=options, limit=st.integers(1, 8))
def test_own_drafts_are_what_counts_over_all_occurrences_say(tokens, given_options, limit):
    proposer = SuffixProposer(K, given_options)
    found = match_lengths(tokens, tokens, given_options.depth, len(tokens) - 1)
    expected, _ = by_definition(tokens, tokens, found, min(K, limit), given_options, goes_on=True)
    assert proposed(proposer, tokens, limit) == expected


@settings(max_examples=200, deadline=None)
@given(outputs=st.lists(small_texts, max_size=3), tokens=small_texts, given_options=options)
def test_drafts_from_finished_answers_are_what_counts_say_and_the_better_score_wins(outputs, tokens, given_options):
    proposer = SuffixProposer(K, given_options)
    shared = []
    for number, output in enumerate(outputs):
        proposer.end(asking.request(f"done {number}", prompt=(9, 9)), [9, 9, *output])
        if len(output) > ANCHORS[0]:
            shared += [*output, SEPARATOR]
    own = match_lengths(tokens, tokens, given_options.depth, len(tokens) - 1)
    mine, score = by_definition(tokens, tokens, own, K, given_options, goes_on=True)
    theirs = match_lengths(shared, tokens, given_options.depth, len(shared))
    other, higher = by_definition(shared, tokens, theirs, K, given_options, goes_on=False)
    assert proposed(proposer, tokens) == (other if higher > score else mine)


@given(tokens=small_texts, growth=st.lists(st.integers(1, 5), max_size=12))
def test_a_growing_text_is_indexed_like_a_whole_one(tokens, growth):
    proposer, length = SuffixProposer(K), 0
    for more in growth:
        length = min(len(tokens), length + more)
        assert proposed(proposer, tokens[:length]) == proposed(SuffixProposer(K), tokens[:length])


def test_a_longer_match_earns_a_longer_draft():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    proposer = SuffixProposer(8)
    assert proposed(proposer, [*text, 90, 1, 2], name="two") == (3, 4)
    assert proposed(proposer, [*text, 90, 1, 2, 3, 4], name="four") == (5, 6, 7, 8)
    assert proposed(SuffixProposer(8, SuffixOptions(factor=0.5)), [*text, 90, 1, 2, 3, 4]) == (5, 6)


def test_the_most_frequent_continuation_is_followed_while_it_is_likely():
    text = [1, 2, 3, 7, 1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 5, 1, 2]
    assert proposed(SuffixProposer(4, SuffixOptions(min_probability=0.6)), text) == (3,)
    assert proposed(SuffixProposer(4, SuffixOptions(min_probability=0.5)), text) == (3, 7)
    assert proposed(SuffixProposer(4, SuffixOptions(min_probability=0.9)), text) == ()


def test_loops_go_on_through_their_own_drafts():
    assert proposed(SuffixProposer(5), [4, *[7, 8] * 4]) == (7, 8, 7, 8, 7)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [2, 1, 3, 1]])
def test_nothing_is_proposed_without_a_match_of_two(tokens):
    assert proposed(SuffixProposer(4), tokens) == ()


def test_finished_answers_serve_the_next_request_from_its_first_tokens_on():
    """The drafts of every request but a server's first were useless (ggml-org/llama.cpp#19231)."""
    proposer = SuffixProposer(4, SuffixOptions(factor=2.0))
    answer = [5, 6, 7, 8, 9, 10]
    proposer.end(asking.request("one", prompt=(1, 2)), [1, 2, *answer])
    for name in ("two", "three"):
        assert proposed(proposer, [3, 4, 5, 6], name=name) == (7, 8, 9, 10)
        proposer.end(asking.request(name, prompt=(3, 4)), [3, 4, *answer])


def test_prompts_are_not_shared():
    proposer = SuffixProposer(4)
    proposer.end(asking.request("one", prompt=(5, 6, 7, 8)), [5, 6, 7, 8, 1, 2, 3])
    assert proposed(proposer, [5, 6], name="two") == ()


def test_answers_of_one_salt_are_never_drafts_of_another():
    proposer = SuffixProposer(4)
    proposer.end(asking.request("one", salt=b"alice"), [5, 6, 7, 8, 9])
    for salt in (b"", b"bob"):
        assert proposed(proposer, [5, 6], name="two", salt=salt) == ()
    assert proposed(proposer, [5, 6], name="three", salt=b"alice") == (7, 8)


def test_running_requests_do_not_see_each_other():
    proposer = SuffixProposer(2)
    assert proposed(proposer, [1, 2, 3, 1, 2], name="first") == (3, 1)
    assert proposed(proposer, [9, 1, 2], name="second") == ()


def test_who_opted_out_teaches_nobody_and_sharing_can_be_off():
    proposer = SuffixProposer(2)
    proposer.end(asking.request("one", speculate=False), [1, 2, 3, 4])
    assert proposed(proposer, [1, 2], name="two") == ()
    proposer = SuffixProposer(2, SuffixOptions(shared=False))
    proposer.end(asking.request("one"), [1, 2, 3, 4])
    assert proposed(proposer, [1, 2], name="two") == ()
    assert proposer.bytes < 2 * 2048 + 2 * BYTES_PER_TOKEN


def fill(proposer, answers, length, seed=0):
    draw = np.random.default_rng(seed)
    texts = [draw.integers(0, 40_000, length).tolist() for _ in range(answers)]
    for number, text in enumerate(texts):
        proposer.end(asking.request(f"a{number}", salt=b"%d" % (number % 3)), text)
    return texts


def test_memory_stays_below_the_budget_and_the_oldest_answers_go_first():
    budget = 1 << 20
    tracemalloc.start()
    try:
        proposer = SuffixProposer(4, SuffixOptions(memory_bytes=budget))
        before = tracemalloc.get_traced_memory()[0]
        texts = fill(proposer, 60, 150)
        taken = tracemalloc.get_traced_memory()[0] - before - sum(56 + 8 * len(text) + 32 * len(text) for text in texts)
    finally:
        tracemalloc.stop()
    assert budget // 2 < proposer.bytes <= budget
    assert taken <= budget
    known = [bool(proposed(proposer, text[10:16], salt=b"%d" % (number % 3))) for number, text in enumerate(texts)]
    assert not known[0]
    assert known[-1]
    assert known == sorted(known), "an older answer outlived a younger one"


def test_a_request_that_finds_no_room_is_served_without_an_index():
    proposer = SuffixProposer(4, SuffixOptions(memory_bytes=1 << 20))
    long = [*range(2000), 0, 1]
    assert proposed(proposer, long, name="one") == (2, 3)
    assert proposed(proposer, long, name="two") == ()
    assert proposer.bytes <= 1 << 20
    proposer.end(asking.request("one", prompt=long), long)
    assert proposed(proposer, long, name="two") == (2, 3)


def test_everything_is_given_back_at_the_end():
    proposer = SuffixProposer(4, SuffixOptions(shared=False))
    for name in ("one", "two"):
        proposed(proposer, [1, 2, 3, 1, 2], name=name)
        proposer.end(asking.request(name), [1, 2, 3, 1, 2])
    proposer.end(asking.request("never asked for"), [1])
    assert proposer.bytes == 0


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(small_texts, min_size=1, max_size=6), evicted=st.integers(0, 6), ending=small_texts)
def test_an_index_that_forgot_texts_is_one_that_never_saw_them(texts, evicted, ending):
    whole, rest = SuffixIndex(), SuffixIndex()
    for index, some in ((whole, texts), (rest, texts[evicted:])):
        for text in some:
            index.extend(text)
            index.close_text()
    whole.evict(sum(len(text) + 1 for text in texts[:evicted]))
    offset = whole.end - rest.end
    found = whole.matches(array("i", ending))
    assert [(match.at - offset, match.length) for match in found] == [
        (match.at, match.length) for match in rest.matches(array("i", ending))
    ]
    assert whole.size == rest.size


def test_a_frequent_ending_costs_a_bounded_number_of_looks():
    index = SuffixIndex()
    for number in range(500):
        index.extend([1, 2, number + 10])
    assert len(index.matches(array("i", [7, 1, 2]))) == OCCURRENCES
    assert len(index.matches(array("i", [1, 2]))) == ENOUGH


@pytest.mark.parametrize(
    ("k", "bad"),
    [(0, {}), (1, {"factor": 0}), (1, {"min_probability": 0}), (1, {"min_probability": 1.5}), (1, {"depth": 1})],
)
def test_settings_that_cannot_propose_are_refused(k, bad):
    with pytest.raises(ValueError, match="min_probability"):
        SuffixProposer(k, SuffixOptions(**bad))


def test_what_most_finished_answers_said_is_proposed():
    proposer = SuffixProposer(1, SuffixOptions(min_probability=0.5))
    for number, answer in enumerate([[1, 2, 7], [1, 2, 8], [1, 2, 8], [1, 2, 9]]):
        proposer.end(asking.request(f"r{number}"), answer)
    assert proposed(proposer, [1, 2], name="next") == (8,)

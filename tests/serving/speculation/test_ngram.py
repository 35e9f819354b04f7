import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.engine.protocols import Draft
from netgain.serving.speculation.ngram import NgramProposer
from tests.serving.speculation import asking


def brute_force(tokens, k, shortest, longest):
    """The definition: longest suffix seen before, first place, copied through its own copies."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = tokens[-size:]
        for end in range(size, len(tokens)):
            if tokens[end - size : end] == suffix:
                text = list(tokens)
                for place in range(end, end + k):
                    text.append(text[place])
                return tuple(text[len(tokens) :])
    return ()


def proposed(proposer, tokens, limit=99, request="r"):
    return asking.draft(proposer, tokens, limit, asking.request(request)).tokens


def test_quick_brown_proposes_fox():
    text = "a quick brown fox ran away . the dog slept . Now that quick brown"
    words = text.split()
    vocabulary = sorted(set(words))
    tokens = [vocabulary.index(word) for word in words]
    drafts = asking.draft(NgramProposer(k=3, lookup_min=2, lookup_max=4), tokens, 3)
    assert [vocabulary[token] for token in drafts.tokens] == ["fox", "ran", "away"]
    assert drafts.laws is None


small_texts = st.lists(st.integers(0, 3), max_size=60)


@given(tokens=small_texts, k=st.integers(1, 8), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_proposal_is_what_first_followed_the_longest_suffix(tokens, k, shortest, more):
    longest = shortest + more
    assert proposed(NgramProposer(k, shortest, longest), tokens) == brute_force(tokens, k, shortest, longest)


@given(tokens=small_texts, growth=st.lists(st.integers(1, 5), max_size=20))
def test_a_growing_text_is_indexed_like_a_whole_one(tokens, growth):
    proposer, length = NgramProposer(4, 2, 4), 0
    for more in growth:
        length = min(len(tokens), length + more)
        assert proposed(proposer, tokens[:length]) == brute_force(tokens[:length], 4, 2, 4)


def test_the_longest_match_wins_and_among_equals_the_first():
    tokens = [2, 3, 8, 1, 2, 3, 7, 1, 2, 3, 9, 1, 2, 3]
    assert proposed(NgramProposer(1, 2, 2), tokens) == (8,)
    assert proposed(NgramProposer(1, 2, 3), tokens) == (7,)


def test_loops_of_any_period_yield_full_drafts():
    assert proposed(NgramProposer(5, 1, 3), [4, 7, 7]) == (7, 7, 7, 7, 7)
    assert proposed(NgramProposer(5, 1, 3), [4, 1, 2, 3, 1, 2, 3]) == (1, 2, 3, 1, 2)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [2, 1, 3, 1]])
def test_nothing_is_proposed_without_a_match(tokens):
    assert proposed(NgramProposer(4, 2, 3), tokens) == ()


@pytest.mark.parametrize(("limit", "count"), [(-1, 0), (0, 0), (1, 1), (3, 3), (9, 4)])
def test_limit_and_k_both_cap_the_draft(limit, count):
    assert len(proposed(NgramProposer(4, 1, 2), [1, 2, 3, 4, 5, 6, 1], limit)) == count


def test_requests_do_not_see_each_other():
    proposer = NgramProposer(2, 1, 2)
    assert proposed(proposer, [1, 2, 3, 1], request="first") == (2, 3)
    assert proposed(proposer, [9, 1], request="second") == ()


def test_a_request_that_ended_starts_over():
    proposer = NgramProposer(2, 1, 2)
    assert proposed(proposer, [1, 2, 3, 1]) == (2, 3)
    proposer.end(asking.request("r"), [1, 2, 3, 1])
    proposer.end(asking.request("never seen"), [1])
    assert proposed(proposer, [5, 1]) == ()


@pytest.mark.parametrize("replaced", [[1, 2], [5, 6, 7, 8, 9]])
def test_replaced_tokens_are_noticed(replaced):
    proposer = NgramProposer(2, 1, 2)
    proposed(proposer, [1, 2, 3, 1])
    assert proposed(proposer, replaced) == ()


def test_asking_again_gives_the_same_answer():
    proposer = NgramProposer(3, 1, 3)
    assert proposed(proposer, [1, 2, 3, 1]) == proposed(proposer, [1, 2, 3, 1]) == (2, 3, 1)


def test_a_text_of_any_sequence_type_will_do():
    assert asking.draft(NgramProposer(2, 1, 2), (1, 2, 1), 2) == Draft((2, 1))


@pytest.mark.parametrize(("k", "shortest", "longest"), [(0, 1, 1), (1, 0, 1), (1, 3, 2)])
def test_settings_that_cannot_propose_are_refused(k, shortest, longest):
    with pytest.raises(ValueError, match="lookup"):
        NgramProposer(k, shortest, longest)

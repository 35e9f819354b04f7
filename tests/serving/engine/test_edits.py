"""Bias, penalties and bans against a reference that does one token at a time in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.engine.edits import Edits, History, apply, needs_history
from netgain.serving.engine.request import SamplingParams

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)
rows_of_logits = st.lists(
    st.lists(st.floats(-20, 20, width=32) | st.just(-np.inf), min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=5
)


def by_hand(logits, params: SamplingParams, prompt, output, ends) -> list[float]:
    edited = [float(value) for value in logits]
    for token, bias in params.logit_bias:
        edited[token] += bias
    for token in {*prompt, *output}:
        if edited[token] > 0:
            edited[token] /= params.repetition_penalty
        else:
            edited[token] *= params.repetition_penalty
    for token in set(output):
        edited[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in ends:
            edited[token] = -np.inf
    return edited


@given(
    table=rows_of_logits,
    prompt=tokens,
    chunks=st.lists(tokens, max_size=4),
    draft=tokens,
    repetition=st.sampled_from((1.0, 1.3, 0.7)),
    presence=st.sampled_from((0.0, 0.5, -1.25)),
    frequency=st.sampled_from((0.0, 0.3, -2.0)),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4),
    min_tokens=st.integers(0, 40),
)
def test_rows_see_what_stands_before_them(
    table, prompt, chunks, draft, repetition, presence, frequency, bias, min_tokens
):
    """Row i is edited as the lone token would be once drafts 1..i are committed, whatever was drafted before."""
    params = SamplingParams(
        max_tokens=99,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(sorted(bias.items())),
        min_tokens=min_tokens,
    )
    ends = frozenset({3, 7})
    history = History(params, tuple(prompt), ends)
    for chunk in chunks:
        history.edits(tuple(draft), None)  # drafts that were offered and forgotten
        history.extend(tuple(chunk))
    output = [token for chunk in chunks for token in chunk]
    draft = (draft + [0] * len(table))[: len(table) - 1]
    logits = np.array(table, dtype=np.float32)
    before = logits.copy()
    edited = apply(history.edits(tuple(draft), None), params, logits)
    for row in range(len(table)):
        with np.errstate(all="ignore"):
            expected = np.array(by_hand(logits[row], params, prompt, output + draft[:row], ends), dtype=np.float32)
        assert np.allclose(edited[row], expected, rtol=1e-6, atol=1e-6)
    assert (logits == before).all()
    assert edited.dtype == np.float32


def test_a_row_has_the_same_bits_whatever_its_neighbours():
    params = SamplingParams(max_tokens=9, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias=((2, 0.1),))
    logits = np.random.default_rng(0).standard_normal((3, VOCAB)).astype(np.float32) * 9
    together = History(params, (1, 2, 3), frozenset())
    together.extend((5, 5))
    edited = apply(together.edits((4, 5), None), params, logits)
    alone = History(params, (1, 2, 3), frozenset())
    for row, token in enumerate((5, 5, 4, 5)):
        if row >= 2:
            assert (apply(alone.edits((), None), params, logits[row - 2 : row - 1])[0] == edited[row - 2]).all()
        alone.extend((token,))


def test_a_mask_of_allowed_tokens_forbids_the_rest_and_what_lies_beyond_it():
    logits = np.ones((2, 70), dtype=np.float32)
    allowed = np.array([[0b101, 0], [0, 1 << 31]], dtype=np.uint32)
    edited = apply(Edits(allowed=allowed), SamplingParams(max_tokens=1), logits)
    assert np.flatnonzero(np.isfinite(edited[0])).tolist() == [0, 2]
    assert np.flatnonzero(np.isfinite(edited[1])).tolist() == [63]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "logprobs": 3}])
def test_requests_without_edits_keep_no_history(fields):
    assert not needs_history(SamplingParams(max_tokens=1, **fields))


def test_many_tokens_grow_the_history():
    params = SamplingParams(max_tokens=999, presence_penalty=1.0)
    history = History(params, (), frozenset())
    history.extend(tuple(range(500)))
    edits = history.edits((600,), None)
    edited = apply(edits, params, np.zeros((2, 700), dtype=np.float32))
    assert edited[0].tolist() == [-1.0] * 500 + [0.0] * 200
    assert edited[1, 600] == -1

"""Verification under penalties, bias, temperature and cuts: every row of a verify segment has the law that the lone token would
have, so the enumeration of the verifier's branches gives exactly the law without speculation."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from netgain.ledger.stage import Stage
from netgain.serving.engine.answer import answer
from netgain.serving.engine.batch import Segment
from netgain.serving.engine.edits import History
from netgain.serving.engine.request import SamplingParams
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier
from tests.serving.speculation.test_verify import deterministic, law_of_output, sampled_from

VOCAB = 3
PROMPT = (1, 1)
LENGTH = 3
PARAMS = {
    "penalties": SamplingParams(max_tokens=9, repetition_penalty=1.5, presence_penalty=0.75, frequency_penalty=-0.5),
    "bias and cuts": SamplingParams(max_tokens=9, logit_bias=((0, 0.5), (2, -1.0)), temperature=0.7, min_p=0.2),
    "top-k behind penalties": SamplingParams(max_tokens=9, frequency_penalty=1.5, top_k=2),
    "min_tokens": SamplingParams(max_tokens=9, min_tokens=2, presence_penalty=1.0),
}
ENDS = frozenset({2})


def logits(context) -> np.ndarray:
    return np.random.default_rng(len(context) * 100 + sum(context)).integers(-4, 5, VOCAB).astype(np.float32) / 2


def drafters_logits(context) -> np.ndarray:
    return (logits(context) + np.array([1.0, 0.0, -0.5])).astype(np.float32)


def segment_laws(params: SamplingParams, output, drafts, logits=logits) -> np.ndarray:
    """What an executor answers to a segment that ends the output with `drafts`, through the engine's own edits."""
    history = History(params, PROMPT, ENDS)
    history.extend(tuple(output))
    rows = np.stack([logits((*PROMPT, *output, *drafts[:row])) for row in range(1 + len(drafts))])
    tokens = ((*PROMPT, *output)[-1], *drafts)
    segment = Segment(
        request_id="r",
        stage=Stage.VERIFY,
        tokens=tokens,
        start=len(PROMPT) + len(output) - 1,
        block_table=(0,),
        rows=len(rows),
        drafts=len(drafts),
        sampling=params,
        choice=0,
        laws=True,
        edits=history.edits(tuple(drafts), None),
    )
    result = answer(segment, rows)
    assert result.error is None
    return result.laws


class Edited:
    """The edited language, one token at a time."""

    def __init__(self, params: SamplingParams, logits=logits) -> None:
        self.vocab = VOCAB
        self._params = params
        self._logits = logits

    def law(self, output):
        (law,) = segment_laws(self._params, output, (), self._logits)
        exact = [Fraction(share) for share in law.tolist()]
        return [share / sum(exact) for share in exact]

    def law_of_texts(self, length):
        texts = {(): Fraction(1)}
        for _ in range(length):
            texts = {
                (*text, token): weight * share
                for text, weight in texts.items()
                for token, share in enumerate(self.law(text))
                if share
            }
        return texts


@pytest.mark.parametrize("name", PARAMS)
def test_rows_of_a_verify_segment_have_the_laws_of_lone_tokens_to_the_last_bit(name):
    params = PARAMS[name]
    for output in product(range(VOCAB), repeat=2):
        for drafts in product(range(VOCAB), repeat=3):
            laws = segment_laws(params, output, drafts)
            for row in range(4):
                (lone,) = segment_laws(params, (*output, *drafts[:row]), ())
                assert (laws[row] == lone).all()


EVERY_VERIFIER = pytest.mark.parametrize(
    "verifier", [RejectionVerifier(), CoupledVerifier(), BlockVerifier()], ids=["rejection", "coupled", "block"]
)


@EVERY_VERIFIER
@pytest.mark.parametrize("name", PARAMS)
def test_the_law_of_the_output_is_the_edited_one(name, verifier):
    language = Edited(PARAMS[name])
    for table in ((7, 3, 12), (1, 11, 6, 9)):
        emitted = law_of_output(verifier, language, deterministic(table, VOCAB), 2, LENGTH)
        assert emitted == language.law_of_texts(LENGTH)


@EVERY_VERIFIER
@pytest.mark.parametrize("name", PARAMS)
def test_a_drafter_under_the_same_parameters_leaves_the_edited_law(name, verifier):
    """The draft's own logits get the same bias, penalties, temperature and cuts, with the drafts before as history; q is
    what was drawn from (huggingface/transformers#47932 reported another; vllm-project/vllm#22987 drifted under a penalty)."""
    target, drafter = Edited(PARAMS[name]), Edited(PARAMS[name], drafters_logits)
    emitted = law_of_output(verifier, target, sampled_from(drafter), 2, LENGTH)
    assert emitted == target.law_of_texts(LENGTH)


@EVERY_VERIFIER
def test_a_drafter_without_the_penalties_of_the_target_leaves_the_edited_law(verifier):
    """It costs acceptance, not the law."""
    params = PARAMS["penalties"]
    drafter = Edited(SamplingParams(max_tokens=9, temperature=0.5, top_k=2), drafters_logits)
    target = Edited(params)
    assert law_of_output(verifier, target, sampled_from(drafter), 2, LENGTH) == target.law_of_texts(LENGTH)


def test_min_tokens_leaves_the_end_no_chance():
    texts = Edited(PARAMS["min_tokens"]).law_of_texts(LENGTH)
    assert all(2 not in text[:2] for text in texts)
    assert any(text[2] == 2 for text in texts)

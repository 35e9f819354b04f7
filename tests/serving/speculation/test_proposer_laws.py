"""Every kind of proposer under every verifier, by exact enumeration: whatever drafts, the law of the text is the target's.

The lookups are the production ones, with their state; the laws that models and heads draft from are put in by hand: a chain
(draft model, EAGLE-like head, MTP), heads that do not know what the others say (Medusa), and a reduced vocabulary.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from netgain.serving.engine.protocols import Ask, Draft
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier
from tests.serving.speculation.test_verify import DRAFTER, TARGET, Language, law_of_output, rows, sampled_from

K, LENGTH = 3, 4
PROMPT = (0, 1, 2, 0, 1, 1, 2, 0)
VERIFIERS = {"coupled": CoupledVerifier(), "rejection": RejectionVerifier(), "block": BlockVerifier()}


def looked_up(proposer, *answered):
    """Drafts of a production proposer that has seen `answered` end before; certain of what it says."""
    for number, answer in enumerate(answered):
        done = Request(id=f"before-{number}", prompt=PROMPT, sampling=SamplingParams(max_tokens=len(answer)))
        proposer.propose([Ask(done, [*PROMPT, *answer[:1]], K)])
        proposer.end(done, [*PROMPT, *answer])
    made = []

    def propose(text, count):
        request = Request(id=f"r-{text}-{count}", prompt=PROMPT, sampling=SamplingParams(max_tokens=LENGTH, seed=1))
        tokens = [*PROMPT, *text]
        (draft,) = proposer.propose([Ask(request, tokens, count)]) if count else (Draft(()),)
        proposer.end(Request(id=request.id, prompt=PROMPT, sampling=request.sampling, speculate=False), tokens)
        made.append(len(draft.tokens))
        yield Draft(draft.tokens[:count]), Fraction(1)

    propose.made = made
    return propose


def blind_heads(language):
    """Head i speaks by the text before the step alone: the drafts are independent of each other."""

    def propose(text, count):
        laws = [language.law((*text, *(number,) * number)) for number in range(count)]
        for tokens in product(range(language.vocab), repeat=count):
            weight = Fraction(1)
            for law, token in zip(laws, tokens, strict=True):
                weight *= law[token]
            if weight:
                yield Draft(tokens, rows(*laws) if count else np.empty((0, language.vocab), dtype=object)), weight

    return propose


class Reduced:
    """Says some tokens only; the law of the others is 0."""

    def __init__(self, language, says):
        self.vocab = language.vocab
        self._language, self._says = language, says

    def law(self, context):
        kept = [
            share if token in self._says else Fraction(0) for token, share in enumerate(self._language.law(context))
        ]
        total = sum(kept)
        return [share / total if total else Fraction(int(token == min(self._says))) for token, share in enumerate(kept)]


KINDS = {
    "ngram": lambda: looked_up(NgramProposer(K, 1, 3)),
    "suffix": lambda: looked_up(SuffixProposer(K, SuffixOptions(factor=2.0))),
    "suffix with earlier answers": lambda: looked_up(
        SuffixProposer(K, SuffixOptions(factor=2.0)), (2, 0, 2, 1), (2, 0, 2, 2), (1, 1, 0, 2)
    ),
    "chain of a model or head": lambda: sampled_from(DRAFTER),
    "Medusa heads": lambda: blind_heads(DRAFTER),
    "reduced vocabulary": lambda: sampled_from(Reduced(DRAFTER, {0, 2})),
    "greedy chain": lambda: sampled_from(Language(3, [(0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)])),
}


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_the_text_is_the_targets_whoever_drafts(kind, verifier):
    propose = KINDS[kind]()
    assert law_of_output(verifier, TARGET, propose, K, LENGTH) == TARGET.law_of_texts(LENGTH)
    if hasattr(propose, "made"):
        assert max(propose.made) > 1, "nothing was drafted, so nothing was put to the test"

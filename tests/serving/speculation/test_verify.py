"""The production verifiers, driven through every branch in rational arithmetic: the law of what they emit is the target's."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from netgain.serving.engine import noise as engine_noise
from netgain.serving.engine.noise import Lane, PositionNoise
from netgain.serving.engine.protocols import Draft, Target
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier


class EnumeratingNoise:
    """Noise that takes every branch in turn. `weight` is the exact probability of the branch taken in this run.

    A run follows `script` (option number per decision) and takes the first option beyond its end; `next_script` is the
    branch to take after it, None when all were taken.
    """

    def __init__(self, script=()):
        self._script = tuple(script)
        self._taken = []
        self.weight = Fraction(1)

    def accept(self, position, ratio):
        ratio = min(Fraction(1), ratio)
        return self._decide([(True, ratio), (False, 1 - ratio)])

    def draw(self, position, law):
        total = sum(law)
        return self._decide([(token, Fraction(share) / total) for token, share in enumerate(law)])

    def _decide(self, options):
        options = [(outcome, weight) for outcome, weight in options if weight > 0]
        number = len(self._taken)
        option = self._script[number] if number < len(self._script) else 0
        self._taken.append((option, len(options)))
        outcome, weight = options[option]
        self.weight *= weight
        return outcome

    @property
    def next_script(self):
        taken = list(self._taken)
        while taken:
            option, count = taken.pop()
            if option + 1 < count:
                return (*(number for number, _ in taken), option + 1)
        return None


def branches(run):
    """(result, exact weight) of `run(noise)` for every way its random decisions can fall."""
    script = ()
    while script is not None:
        noise = EnumeratingNoise(script)
        result = run(noise)
        yield result, noise.weight
        script = noise.next_script


def rows(*laws):
    table = np.empty((len(laws), len(laws[0])), dtype=object)
    for index, law in enumerate(laws):
        table[index] = [Fraction(share) for share in law]
    return table


class Language:
    """Rational laws over a small vocabulary that depend on the whole context."""

    def __init__(self, vocab, table):
        self.vocab = vocab
        self._table = table

    def law(self, context):
        weights = self._table[hash(context) % len(self._table)]
        return [Fraction(weight, sum(weights)) for weight in weights]

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


def law_of_output(verifier, target, propose, k, length):
    """The exact law of the first `length` tokens when the engine's loop runs `verifier` over every branch.

    `propose(context, count)` yields (Draft, weight). Target rows condition on the drafts before them; drafts are capped
    so that no step commits more than remains, as the engine does.
    """
    finished, open_texts = {}, {(): Fraction(1)}
    while open_texts:
        text, weight = open_texts.popitem()
        count = min(k, length - len(text) - 1)
        for draft, proposed in propose(text, count):
            contexts = [(*text, *draft.tokens[:index]) for index in range(len(draft.tokens) + 1)]
            for committed, branch in step(verifier, target, draft, contexts, len(text)):
                longer, mass = (*text, *committed), weight * proposed * branch
                pool = finished if len(longer) == length else open_texts
                pool[longer] = pool.get(longer, 0) + mass
    return finished


def step(verifier, target, draft, contexts, position):
    """(committed, weight) for every branch of one verification; choices are enumerated where the verifier reads them."""
    laws = rows(*(target.law(context) for context in contexts))
    if verifier.needs_laws:
        everything = Target((0,) * len(laws), laws)
        yield from branches(lambda noise: verifier.verify(draft, everything, noise, position))
        return
    for choices in product(*([token for token, share in enumerate(law) if share] for law in laws)):
        weight = Fraction(1)
        for row, token in zip(laws, choices, strict=True):
            weight *= row[token]
        yield verifier.verify(draft, Target(choices, None), EnumeratingNoise(), position), weight


def sampled_from(language, report=None):
    """Drafts drawn from `language`, with q as drawn (or what `report` makes of it)."""

    def propose(text, count):
        for tokens in product(range(language.vocab), repeat=count):
            contexts = [(*text, *tokens[:index]) for index in range(count)]
            laws = [language.law(context) for context in contexts]
            weight = Fraction(1)
            for law, token in zip(laws, tokens, strict=True):
                weight *= law[token]
            if weight:
                reported = [report(law) for law in laws] if report else laws
                yield Draft(tokens, rows(*reported) if count else np.empty((0, language.vocab), dtype=object)), weight

    return propose


def deterministic(table, vocab):
    """One-hot drafts as an n-gram lookup makes them: a function of the text, of varying length."""

    def propose(text, count):
        number = table[hash(text) % len(table)]
        count = min(count, number % 4)
        yield Draft(tuple((number // 4 + index * number) % vocab for index in range(count))), Fraction(1)

    return propose


def laws_table(vocab):
    weights = st.lists(st.integers(0, 5), min_size=vocab, max_size=vocab).filter(any)
    return st.lists(weights, min_size=1, max_size=6)


EVERY_VERIFIER = pytest.mark.parametrize(
    "verifier", [RejectionVerifier(), CoupledVerifier(), BlockVerifier()], ids=["rejection", "coupled", "block"]
)
TARGET = Language(3, [(1, 2, 3), (4, 1, 0), (1, 1, 5), (0, 3, 1), (2, 2, 1)])
DRAFTER = Language(3, [(3, 1, 1), (1, 0, 2), (2, 5, 0), (1, 1, 1)])


@EVERY_VERIFIER
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_sampled_drafts_leave_exactly_the_targets_law(verifier, k):
    emitted = law_of_output(verifier, TARGET, sampled_from(DRAFTER), k, length=4)
    assert emitted == TARGET.law_of_texts(4)


@EVERY_VERIFIER
@pytest.mark.parametrize("k", [1, 2, 3])
def test_one_hot_drafts_leave_the_targets_law(verifier, k):
    propose = deterministic([1, 2, 7, 11, 14, 3, 9], vocab=3)
    assert law_of_output(verifier, TARGET, propose, k, length=4) == TARGET.law_of_texts(4)


@settings(max_examples=25, deadline=None)
@given(
    target=laws_table(3),
    drafter=laws_table(3),
    k=st.integers(1, 2),
    verifier=st.sampled_from([RejectionVerifier(), BlockVerifier()]),
)
def test_sampling_verifiers_are_exact_for_any_rational_laws(target, drafter, k, verifier):
    target, drafter = Language(3, target), Language(3, drafter)
    assert law_of_output(verifier, target, sampled_from(drafter), k, 3) == target.law_of_texts(3)


def expected_kept(verifier, target, drafter, k):
    """The exact mean number of drafts that one verification of `k` sampled drafts keeps, and the chance to keep each
    number."""
    chances = [Fraction(0)] * (k + 1)
    for draft, proposed in sampled_from(drafter)((), k):
        contexts = [draft.tokens[:index] for index in range(k + 1)]
        for committed, weight in step(verifier, target, draft, contexts, 0):
            chances[len(committed) - 1] += proposed * weight
    assert sum(chances) == 1
    return sum(kept * chance for kept, chance in enumerate(chances))


@settings(max_examples=60, deadline=None)
@given(target=laws_table(3), drafter=laws_table(3), k=st.integers(1, 3))
def test_block_verification_never_keeps_less_than_rejection_sampling(target, drafter, k):
    target, drafter = Language(3, target), Language(3, drafter)
    block = expected_kept(BlockVerifier(), target, drafter, k)
    single = expected_kept(RejectionVerifier(), target, drafter, k)
    assert block >= single
    assert k > 1 or block == single


def test_block_verification_keeps_more_where_a_likely_beginning_makes_up_for_the_end():
    """Two published implementations kept the test and the residual of single tokens (vllm-project/vllm-ascend#7807): then
    nothing more is kept, or the law is another."""
    target, drafter = Language(2, [(1, 2)]), Language(2, [(2, 1)])
    block = expected_kept(BlockVerifier(), target, drafter, 2)
    assert expected_kept(RejectionVerifier(), target, drafter, 2) == Fraction(10, 9)
    assert block == Fraction(11, 9)
    assert law_of_output(BlockVerifier(), target, sampled_from(drafter), 2, 3) == target.law_of_texts(3)


class KeepsTheTestOfSingleTokens(BlockVerifier):
    """Wrong, as two published implementations were: takes the longest draft whose last token alone passes."""

    def verify(self, draft, target, noise, position):
        for kept in range(len(draft.tokens), 0, -1):
            p, q = target.laws[kept - 1], draft.laws[kept - 1]
            token = draft.tokens[kept - 1]
            if p[token] > 0 and noise.accept(position + kept - 1, p[token] / q[token]):
                break
        else:
            kept = 0
        if kept == len(draft.tokens):
            return (*draft.tokens, noise.draw(position + kept, target.laws[kept]))
        rest = np.maximum(target.laws[kept] - draft.laws[kept], 0)
        return (*draft.tokens[:kept], noise.draw(position + kept, rest if sum(rest) else target.laws[kept]))


@settings(max_examples=25, deadline=None)
@given(
    target=laws_table(3),
    drafts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    verifier=st.sampled_from([RejectionVerifier(), CoupledVerifier(), BlockVerifier()]),
)
def test_any_one_hot_drafts_leave_any_rational_law(target, drafts, verifier):
    target = Language(3, target)
    assert law_of_output(verifier, target, deterministic(drafts, 3), 3, 3) == target.law_of_texts(3)


def test_a_draft_truncated_like_top_k_is_exact_when_it_reports_what_it_drew():
    """Drafting from a cut law is lossless, since q in the test is the q that was sampled."""
    cut = Language(3, [(3, 1, 0), (1, 0, 0), (0, 5, 2)])
    for verifier in (RejectionVerifier(), BlockVerifier()):
        assert law_of_output(verifier, TARGET, sampled_from(cut), 2, 3) == TARGET.law_of_texts(3)


def flattened(law):
    return [(share + Fraction(1, 3)) / 2 for share in law]


def test_reporting_another_law_than_was_drawn_is_caught():
    """The check has teeth: testing against untruncated q while drafting from truncated q shifts the law."""
    right = TARGET.law_of_texts(3)
    for verifier in (RejectionVerifier(), BlockVerifier()):
        wrong = law_of_output(verifier, TARGET, sampled_from(DRAFTER, report=flattened), 2, 3)
        assert sum(wrong.values()) == 1
        assert sum(abs(wrong.get(text, 0) - right.get(text, 0)) for text in {*wrong, *right}) / 2 > Fraction(1, 100)


class AcceptsAgainstP(RejectionVerifier):
    """Wrong: accepts with p instead of p/q."""

    def verify(self, draft, target, noise, position):
        for index, token in enumerate(draft.tokens):
            p, q = target.laws[index], draft.laws[index]
            if not (p[token] > 0 and noise.accept(position + index, p[token])):
                rest = np.maximum(p - q, 0)
                return (*draft.tokens[:index], noise.draw(position + index, rest if sum(rest) else p))
        return (*draft.tokens, noise.draw(position + len(draft.tokens), target.laws[-1]))


class ReplacesFromTarget(RejectionVerifier):
    """Wrong: replaces a rejected draft from p instead of from the residual."""

    def verify(self, draft, target, noise, position):
        for index, token in enumerate(draft.tokens):
            p, q = target.laws[index], draft.laws[index]
            if not noise.accept(position + index, p[token] / q[token]):
                return (*draft.tokens[:index], noise.draw(position + index, p))
        return (*draft.tokens, noise.draw(position + len(draft.tokens), target.laws[-1]))


class BonusFromTheRowBefore(RejectionVerifier):
    """Wrong: takes the bonus from the row of the last draft."""

    def verify(self, draft, target, noise, position):
        shifted = Target(target.choices, np.concatenate([target.laws[:-1], target.laws[-2:-1]]))
        return super().verify(draft, shifted if draft.tokens else target, noise, position)


class ReadsTheRowAfter(CoupledVerifier):
    """Wrong: replaces a rejected draft with the choice of the row that was conditioned on it."""

    def verify(self, draft, target, noise, position):
        committed = super().verify(draft, target, noise, position)
        if len(committed) > len(draft.tokens):
            return committed
        return (*committed[:-1], target.choices[len(committed)])


@pytest.mark.parametrize(
    "verifier",
    [
        AcceptsAgainstP(),
        ReplacesFromTarget(),
        BonusFromTheRowBefore(),
        ReadsTheRowAfter(),
        KeepsTheTestOfSingleTokens(),
    ],
)
def test_wrong_verifiers_are_caught_by_the_enumeration(verifier):
    emitted = law_of_output(verifier, TARGET, sampled_from(DRAFTER), 2, 3)
    assert sum(emitted.values()) == 1
    assert emitted != TARGET.law_of_texts(3)


def test_worked_example_of_two_tokens():
    """q = (0.8, 0.2), p = (0.5, 0.5): A proposed and accepted 0.5; A rejected 0.3, all to B; B 0.2 + 0.3."""
    p, q = ("1/2", "1/2"), ("4/5", "1/5")
    target = Target((0, 0), rows(p, p))
    emitted, accepted = {}, {}
    for token, share in ((0, Fraction(4, 5)), (1, Fraction(1, 5))):
        draft = Draft((token,), rows(q))
        for committed, weight in branches(lambda noise, d=draft: RejectionVerifier().verify(d, target, noise, 0)):
            emitted[committed[0]] = emitted.get(committed[0], 0) + share * weight
            if len(committed) == 2:
                accepted[token] = accepted.get(token, 0) + share * weight
    assert emitted == {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert accepted == {0: Fraction(1, 2), 1: Fraction(1, 5)}


class ScriptedNoise:
    """Answers in order and remembers what was asked."""

    def __init__(self, accepts=(), draws=()):
        self._accepts, self._draws = iter(accepts), iter(draws)
        self.asked = []

    def accept(self, position, ratio):
        self.asked.append(("accept", position, ratio))
        return next(self._accepts)

    def draw(self, position, law):
        self.asked.append(("draw", position, list(law)))
        return next(self._draws)


def test_two_accepted_and_the_third_rejected_commit_two_drafts_and_a_residual():
    p, q = (0.25, 0.25, 0.5), (0.5, 0.25, 0.25)
    noise = ScriptedNoise(accepts=[True, True, False], draws=[2])
    committed = RejectionVerifier().verify(
        Draft((0, 0, 0), np.array([q, q, q])), Target((9, 9, 9, 9), np.array([p, p, p, p])), noise, 10
    )
    assert committed == (0, 0, 2)
    assert noise.asked == [
        ("accept", 10, 0.5),
        ("accept", 11, 0.5),
        ("accept", 12, 0.5),
        ("draw", 12, [0.0, 0.0, 0.25]),
    ]


def test_all_accepted_commit_one_more_from_the_last_row():
    last = [0.1, 0.2, 0.7]
    noise = ScriptedNoise(accepts=[True, True], draws=[1])
    target = Target((0, 0, 0), np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], last]))
    assert RejectionVerifier().verify(Draft((0, 1)), target, noise, 5) == (0, 1, 1)
    assert noise.asked[-1] == ("draw", 7, last)


def test_without_drafts_one_token_is_committed():
    target = Target((1,), np.array([[0.0, 1.0]]))
    for verifier in (RejectionVerifier(), CoupledVerifier(), BlockVerifier()):
        assert verifier.verify(Draft(()), target, PositionNoise(0, 0), 3) == (1,)


def test_a_draft_the_target_forbids_is_rejected_without_a_chance():
    target = Target((1, 1), np.array([[0.0, 1.0], [0.5, 0.5]]))
    for laws in (None, np.array([[1.0, 0.0]])):
        for verifier in (RejectionVerifier(), BlockVerifier()):
            noise = ScriptedNoise(draws=[1])
            assert verifier.verify(Draft((0,), laws), target, noise, 0) == (1,)
            assert [kind for kind, *_ in noise.asked] == ["draw"]


def test_a_draft_that_its_own_law_forbids_is_rejected():
    target = Target((0, 0), np.array([[0.5, 0.5], [0.5, 0.5]]))
    for verifier in (RejectionVerifier(), BlockVerifier()):
        noise = ScriptedNoise(draws=[0])
        assert verifier.verify(Draft((0,), np.array([[0.0, 1.0]])), target, noise, 0) == (0,)
        assert noise.asked == [("draw", 0, [0.5, 0.0])]


def test_a_draft_less_likely_than_the_target_has_it_is_always_kept():
    target = Target((0, 0), np.array([[0.5, 0.5], [1.0, 0.0]]))
    with np.errstate(all="raise"):
        for verifier in (RejectionVerifier(), BlockVerifier()):
            tiny = Draft((0,), np.array([[5e-324, 1.0]]))
            assert verifier.verify(tiny, target, PositionNoise(0, 0), 0) == (0, 0)


def test_rounding_that_leaves_no_residual_still_commits_an_allowed_token():
    almost = np.array([np.nextafter(1.0, 0.0), 0.0])
    target = Target((0, 0), np.array([almost, almost]))
    for laws in (None, np.array([[1.0, 0.0]])):
        for verifier in (RejectionVerifier(), BlockVerifier()):
            noise = ScriptedNoise(accepts=[False], draws=[0])
            assert verifier.verify(Draft((0,), laws), target, noise, 0) == (0,)
            assert noise.asked[-1] == ("draw", 0, list(almost))


def test_verification_changes_neither_laws_nor_drafts():
    p, q = np.full((3, 4), 0.25), np.array([[0.7, 0.1, 0.1, 0.1]] * 2)
    before = p.copy(), q.copy()
    for seed in range(20):
        for verifier in (RejectionVerifier(), BlockVerifier()):
            verifier.verify(Draft((0, 0), q), Target((0, 0, 0), p), PositionNoise(seed, 0), 0)
            verifier.verify(Draft((0, 0)), Target((0, 0, 0), p), PositionNoise(seed, 0), 0)
    assert (p == before[0]).all()
    assert (q == before[1]).all()


@pytest.mark.parametrize(
    ("drafts", "choices", "committed"),
    [
        ((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4)),
        ((1, 2, 3), (1, 2, 7, 4), (1, 2, 7)),
        ((1, 2, 3), (1, 7, 3, 4), (1, 7)),
        ((1, 2, 3), (7, 2, 3, 4), (7,)),
    ],
)
def test_coupled_verification_walks_the_targets_choices(drafts, choices, committed):
    assert CoupledVerifier().verify(Draft(drafts), Target(choices, None), PositionNoise(0, 0), 0) == committed


@EVERY_VERIFIER
def test_rows_that_do_not_belong_to_the_drafts_are_refused(verifier):
    with pytest.raises(ValueError, match="2 drafts need 3 target rows"):
        verifier.verify(Draft((0, 0)), Target((0, 0), np.ones((2, 2))), PositionNoise(0, 0), 0)
    with pytest.raises(ValueError, match="1 draft laws"):
        verifier.verify(Draft((0, 0), np.ones((1, 2))), Target((0, 0, 0), np.ones((3, 2))), PositionNoise(0, 0), 0)


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=["rejection", "block"])
def test_sampling_verification_without_laws_is_refused(verifier):
    with pytest.raises(ValueError, match="without them"):
        verifier.verify(Draft((0,)), Target((0, 0), None), PositionNoise(0, 0), 0)


def frequencies(noise_of, trials=4_000, verifier=RejectionVerifier()):  # noqa: B008 - it has no state
    """How often two tokens are emitted when drafts are drawn with the target's own noise and then verified."""
    p, q = np.array([[0.1, 0.4, 0.5]] * 3), np.array([[0.7, 0.29, 0.01]] * 2)
    table = np.zeros((3, 3))
    for seed in range(trials):
        draft = tuple(engine_noise.draw(seed, 0, position, Lane.TOKEN, np.log(q[position])) for position in range(2))
        committed = verifier.verify(Draft(draft, q), Target((0, 0, 0), p), noise_of(seed), 0)
        if len(committed) == 1:  # the engine's next step, from a fresh position
            committed += (PositionNoise(seed, 0).draw(1, p[1]),)
        table[committed[0], committed[1]] += 1
    expected = np.outer(p[0], p[1]) * trials
    return stats.chisquare(table.ravel(), expected.ravel()).pvalue


def test_drafts_drawn_with_the_targets_noise_leave_its_law():
    for verifier in (RejectionVerifier(), BlockVerifier()):
        assert frequencies(lambda seed: PositionNoise(seed, 0), verifier=verifier) > 1e-4


class OneLane(PositionNoise):
    """Wrong: replaces rejected drafts with the noise the draft was drawn with."""

    def __init__(self, seed):
        super().__init__(seed, 0)
        self._seed = seed

    def draw(self, position, law):
        with np.errstate(divide="ignore"):
            return engine_noise.draw(self._seed, 0, position, Lane.TOKEN, np.log(law))


def test_sharing_the_drafts_noise_with_the_residual_is_caught():
    assert frequencies(OneLane) < 1e-9

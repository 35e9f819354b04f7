"""What a grammar lets through is what it should, under every schedule; what cannot be used is refused by its reason."""

import itertools
import json
import random
import time

import numpy as np
import pytest
from scipy.stats import chi2_contingency

pytest.importorskip("llguidance")

from netgain.errors import RequestRejected
from netgain.serving.engine.grammar import MAX_GRAMMAR_CHARACTERS, Grammars
from netgain.serving.engine.model_drafts import DraftLimits, ModelDrafts
from netgain.serving.engine.request import Grammar
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.verify import RejectionVerifier
from tests.serving.engine.features import BLOCK, EOS, VOCAB, Answers, make_engine, request, serve
from tests.serving.engine.logit_executor import LogitExecutor

SPELLED = (*(b"", b"{", b"}", b"[", b"]", b'"', b",", b":", b"0", b"1", b"a", b"b", b" ", b'{"', b'":'), b'"}', b"ab")
SPELLED = (*SPELLED, b"true", b"")
assert len(SPELLED) == VOCAB

WORDS = Grammar(kind="regex", text="(a|b){2,6}(,(0|1)){0,3}")
LANGUAGE = {
    "".join(letters) + "".join("," + digit for digit in digits)
    for length in range(2, 7)
    for letters in itertools.product("ab", repeat=length)
    for count in range(4)
    for digits in itertools.product("01", repeat=count)
}
PREFIXES = {word[:cut] for word in LANGUAGE for cut in range(len(word) + 1)}

SCHEDULES = {
    "alone": {},
    "speculating": {"k": 5},
    "chunked": {"budget": 8, "caching": False},
    "preempted": {"blocks": 14, "caching": False},
    "preempted and speculating": {"blocks": 14, "k": 3},
}
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 9},
    "scored and penalised": {"temperature": 0.8, "seed": 2, "frequency_penalty": 0.5, "logprobs": 3, "top_k": 8},
    "late": {"temperature": 0.0, "min_tokens": 4, "logit_bias": ((0, 5.0),)},
}


def grammars(**fields) -> Grammars:
    return Grammars(lambda token: SPELLED[token], VOCAB, **fields)


def text_of(tokens) -> str:
    return b"".join(SPELLED[token] for token in tokens).decode()


def allowed_words(min_tokens: int):
    """By brute force over the language: what continues to a word, and the end behind one."""

    def allowed(output):
        text = text_of(output)
        following = {t for t in range(VOCAB) if SPELLED[t] and text + SPELLED[t].decode() in PREFIXES}
        return following | (EOS if text in LANGUAGE and (len(output) >= min_tokens or not following) else set())

    return allowed


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sampling", SAMPLING)
async def test_a_regex_allows_exactly_its_language_under_every_schedule(schedule, sampling):
    fields = {**SAMPLING[sampling], "grammar": WORDS}
    rng = random.Random(1)
    prompts = [[10, 11, 16, 10, 6, 8, 6, 9] * 3, [rng.randrange(1, VOCAB) for _ in range(26)], [3], [16, 16, 11] * 4]
    engine = make_engine(grammars=grammars(), **SCHEDULES[schedule])
    requests = [request(f"r{i}", prompt, **fields) for i, prompt in enumerate(prompts)]
    requests.append(request("free", [7] * 10, 40, temperature=0.0, ignore_eos=True))
    answers = await serve(engine, requests)
    for one in requests[:-1]:
        answers.check(one, allowed_words(fields.get("min_tokens", 0)))
        assert text_of(answers.tokens[one.id]) in LANGUAGE
        assert answers.last[one.id].finish_reason == "stop"
    answers.check(requests[-1])
    assert bool(engine.stats().preemptions) == ("preempted" in schedule)
    if "speculating" in schedule:
        assert 0 < engine.stats().accepted_tokens <= engine.stats().drafted_tokens


SCHEMAS = {
    "any object": ({"type": "object"}, lambda value: isinstance(value, dict)),
    "list": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
        lambda value: 2 <= len(value) <= 5 and all(item is True or item is False for item in value),
    ),
    "fields": (
        {
            "type": "object",
            "properties": {"a": {"enum": [0, 1, 10]}, "b": {"type": "string", "maxLength": 3}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        lambda value: value.keys() == {"a", "b"} and value["a"] in (0, 1, 10) and len(value["b"]) <= 3,
    ),
}


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("name", SCHEMAS)
async def test_json_follows_its_schema_and_speculation_changes_nothing(name, k):
    schema, holds = SCHEMAS[name]
    grammar = Grammar(kind="json_schema", text=json.dumps(schema))
    texts = []
    for settings in ({}, {"k": k, "blocks": 45, "budget": 20}):
        engine = make_engine(grammars=spelled_out(), **settings)
        requests = [
            request(f"r{seed}", [13, 10, 14, 8, 6] * 2, 150, temperature=0.8, seed=seed, grammar=grammar, top_p=0.9)
            for seed in range(6)
        ]
        answers = await serve(engine, requests)
        texts.append({one.id: (answers.tokens[one.id], answers.last[one.id].finish_reason) for one in requests})
    assert texts[0] == texts[1]
    complete = [tokens for tokens, reason in texts[0].values() if reason == "stop"]
    assert complete, "all were cut off"
    for tokens in complete:
        assert holds(json.loads(text_of_spelled_out(tokens)))


OUT = (
    b"",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"0",
    b"1",
    b"a",
    b"b",
    b"true",
    b'{"',
    b'":',
    b'"}',
    b"ab",
    b"false",
    b"",
)


def spelled_out() -> Grammars:
    return Grammars(lambda token: OUT[token], VOCAB)


def text_of_spelled_out(tokens) -> str:
    return b"".join(OUT[token] for token in tokens).decode()


async def test_lark_grammars_and_many_at_once():
    nested = Grammar(kind="lark", text='start: "a" | "[" start "]"\n')
    engine = make_engine(grammars=grammars(), k=3)
    requests = [
        request("lark", [3, 3, 10, 4, 4], 40, temperature=0.0, grammar=nested, logit_bias=((3, -1.0),)),
        request("words", [10, 11], 40, temperature=0.0, grammar=WORDS),
        request("free", [10, 11], 20, temperature=0.0),
    ]
    answers = await serve(engine, requests)
    text = text_of(answers.tokens["lark"])
    depth = text.index("a")
    assert text == "[" * depth + "a" + "]" * depth
    assert text_of(answers.tokens["words"]) in LANGUAGE
    answers.check(requests[2])


async def test_rejection_sampling_stays_within_the_grammar():
    engine = make_engine(grammars=grammars(), k=4, verifier=RejectionVerifier())
    requests = [
        request(f"r{seed}", [16] * 6, temperature=1.0, seed=seed, grammar=WORDS, logit_bias=((16, 3.0),))
        for seed in range(20)
    ]
    answers = await serve(engine, requests)
    assert engine.stats().accepted_tokens > 0
    for one in requests:
        assert answers.last[one.id].finish_reason == "stop"
        assert text_of(answers.tokens[one.id]) in LANGUAGE


async def test_a_text_token_that_stops_may_stand_only_where_the_text_matches():
    """It is no part of the text, so as a stop it must not cut off what the grammar still wants."""
    engine = make_engine(grammars=grammars(), k=3)
    one = request("r", [10, 11], 30, temperature=0.0, grammar=WORDS, stop_token_ids=(6,), logit_bias=((6, 50.0),))
    answers = await serve(engine, [one])
    assert answers.tokens["r"][-1] == 6
    assert text_of(answers.tokens["r"][:-1]) in LANGUAGE


async def test_what_no_token_can_continue_is_an_error_and_nothing_wrong_is_sent():
    engine = make_engine(grammars=grammars(), k=3)
    answers = await serve(
        engine, [request("r", [10, 11], 30, temperature=0.0, grammar=Grammar(kind="regex", text="abz"))]
    )
    assert answers.last["r"].finish_reason == "error"
    assert "no token" in answers.last["r"].error or "followed" in answers.last["r"].error
    assert "abz".startswith(text_of(answers.tokens["r"]))
    assert engine.scheduler.pool.available == engine.scheduler.pool.blocks


async def test_a_text_cut_off_by_max_tokens_says_length():
    engine = make_engine(grammars=grammars())
    answers = await serve(engine, [request("r", [10], 1, temperature=0.0, grammar=WORDS)])
    assert answers.last["r"].finish_reason == "length"
    assert text_of(answers.tokens["r"]) in PREFIXES


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": "objec"}', "Invalid type: objec"),
        ("json_schema", '{"type": ', "no JSON"),
        ("json_schema", "5", "object, true or false"),
        ("json_schema", '"x"\nother: "y"', "no JSON"),
        ("json_schema", "[" * 50_000, "no JSON"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"$ref": "http://example.com/x"}', "example.com"),
        ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
        ("regex", "(", "unclosed group"),
        ("lark", "start: missing", 'unknown name: "missing"'),
        ("lark", 'start: start "a"', "no text matches it"),
        ("json_schema", '{"$ref": "#"}', "no text matches it"),
        ("lark", "", "no start rule found"),
        ("regex", "a" * (MAX_GRAMMAR_CHARACTERS + 1), "limit is 65536"),
    ],
)
def test_unusable_grammars_are_refused_at_once_by_their_reason(kind, text, reason):
    engine = make_engine(grammars=grammars())
    for _ in range(2):
        with pytest.raises(RequestRejected, match=reason) as caught:
            engine.submit(request("r", [1], 5, grammar=Grammar(kind=kind, text=text)))
        assert caught.value.parameter == "grammar"
        assert len(str(caught.value)) < 700
        assert "\n" not in str(caught.value)
    assert not engine.has_work


def test_a_grammar_needs_a_way_to_end():
    engine = make_engine(grammars=grammars())
    with pytest.raises(RequestRejected, match="ignore_eos"):
        engine.submit(request("r", [1], 5, grammar=WORDS, ignore_eos=True))
    with pytest.raises(RequestRejected, match="vocabulary"):
        make_engine().submit(request("r", [1], 5, grammar=WORDS))


def hostile():
    yield "regex", "(a*)*b"
    yield "regex", "((((a{1,100}){1,100}){1,100}){1,100})"
    yield "regex", "a{1000000}"
    yield "regex", "(.*[ab].{15}|.*[b0].{17}|.*[01].{19}){2,30}"
    yield (
        "json_schema",
        json.dumps(
            {"allOf": [{"anyOf": [{"properties": {f"k{i}": {"const": j}}} for j in range(6)]} for i in range(9)]}
        ),
    )
    yield "json_schema", json.dumps({"type": "string", "minLength": 10**6})
    yield "json_schema", json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(3000)}})
    chain = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40))
    yield "lark", f'start: r0\n{chain}\nr40: "a"'
    yield "lark", 'start: start start start | "a"'


async def test_hostile_grammars_cost_bounded_time():
    """Compiled, or refused, or ended with an error: each compile and each step within a few seconds on any machine."""
    for kind, text in hostile():
        engine = make_engine(grammars=grammars())
        began = time.process_time()
        try:
            engine.submit(request("r", [10, 11], 25, temperature=1.0, grammar=Grammar(kind=kind, text=text)))
        except RequestRejected:
            pass
        else:
            answers = await serve(engine, [request("other", [1, 2], 20, temperature=0.0)])
            answers.check(request("other", [1, 2], 20, temperature=0.0))
        assert time.process_time() - began < 6, (kind, text[:60])


def test_compiled_grammars_are_kept_but_not_all_of_them():
    held = grammars(kept=2)
    texts = [Grammar(kind="regex", text=letter) for letter in ("a", "b", "ab")]
    for grammar in (texts[0], texts[1], texts[0], texts[2]):
        held.compile(grammar)
    assert [held.known(grammar) for grammar in texts] == [True, False, True]
    with pytest.raises(RequestRejected):
        held.compile(Grammar(kind="regex", text="("))
    assert held.known(Grammar(kind="regex", text="(")), "a refusal is kept, too"


async def test_grammars_are_prepared_while_the_loop_goes_on():
    engine = make_engine(grammars=grammars())
    one = request("r", [10], 20, temperature=0.0, grammar=WORDS)
    assert engine.must_prepare(one)
    await engine.prepare(one)
    assert not engine.must_prepare(one)
    answers = await serve(engine, [one])
    answers.check(one, allowed_words(0))
    with pytest.raises(RequestRejected, match="unclosed"):
        await engine.prepare(request("bad", [10], 20, grammar=Grammar(kind="regex", text="(")))
    engine.close()


def test_masks_of_a_step_are_those_of_each_request_alone():
    held = grammars()
    jobs = []
    for drafts in ((), (10, 11), (16, 6, 8)):
        constraint = held.start(WORDS, EOS)
        assert constraint.allowed_drafts(drafts) == len(drafts)
        jobs.append((constraint, drafts, 0))
    together = held.masks(jobs)
    for (_, drafts, _), rows in zip(jobs, together, strict=True):
        lone = held.start(WORDS, EOS)
        for row in range(1 + len(drafts)):
            (mask,) = held.masks([(lone, (), 0)])
            assert (mask[0] == rows[row]).all()
            bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
            assert set(np.flatnonzero(bits)) == allowed_words(0)(drafts[:row])
            if row < len(drafts):
                assert lone.extend([drafts[row]]) is None


async def test_answers_object_sees_a_wrong_text():
    """The checks above have teeth: another language than the grammar's is noticed."""
    engine = make_engine(grammars=grammars())
    one = request("r", [10, 11], 30, temperature=0.0, grammar=Grammar(kind="regex", text="(0|1){3}"))
    answers = await serve(engine, [one], Answers())
    with pytest.raises(AssertionError):
        answers.check(one, allowed_words(0))


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=["rejection", "block"])
async def test_a_draft_model_that_breaks_the_grammar_leaves_the_law(verifier):
    """Such a draft must be rejected by the verifier: cut off, what replaces it would be drawn from the wrong law."""

    class Tempted(LogitExecutor):
        """Likes what the grammar forbids, and one of the letters more than the target does."""

        def _rows(self, contexts):
            liking = np.zeros(VOCAB, dtype=np.float32)
            liking[8], liking[10] = 2.0, 3.0
            return super()._rows(contexts) + liking

    grammar, seen = Grammar(kind="regex", text="(a|b){3}"), {}
    for name in ("plain", "drafted"):
        counts = seen[name] = dict.fromkeys(map("".join, itertools.product("ab", repeat=3)), 0)
        drafted = name == "drafted"
        source = ModelDrafts(
            Tempted(96, BLOCK, VOCAB),
            DraftLimits(context=300, vocab=VOCAB, rows=64),
            blocks=96,
            block_tokens=BLOCK,
        )
        engine = make_engine(
            grammars=grammars(),
            k=3 if drafted else 0,
            proposer=source if drafted else None,
            verifier=verifier,
            running=32,
        )
        for start in range(0, 720, 48):
            requests = [
                request(
                    f"r{seed}", [10, 11, 3], temperature=1.0, seed=seed if drafted else seed + 10**6, grammar=grammar
                )
                for seed in range(start, start + 48)
            ]
            answers = await serve(engine, requests)
            for one in requests:
                counts[text_of(answers.tokens[one.id])] += 1
    table = np.array([[seen[name][text] for text in seen["plain"]] for name in seen])
    assert chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4

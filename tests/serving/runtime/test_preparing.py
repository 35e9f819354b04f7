"""A grammar is compiled beside the step loop: what runs goes on, and aborts and refusals find their request."""

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from netgain.serving.engine.request import Grammar
from netgain.serving.runtime.messages import Refused
from netgain.serving.runtime.preparing import MAX_PREPARING, Preparing
from tests.serving.engine.features import Answers, make_engine, request
from tests.serving.engine.test_grammar import LANGUAGE, WORDS, grammars, text_of


async def run(engine, preparing, answers) -> None:
    """The loop of an engine process, without its socket."""
    for _ in range(4000):
        preparing.hand_over(engine)
        if engine.has_work:
            answers.take(await engine.step())
            engine.check()
        elif not preparing._tasks:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("does not end")


async def test_requests_go_on_while_a_grammar_is_compiled():
    refused: list[Refused] = []
    engine, answers = make_engine(grammars=grammars()), Answers()
    preparing = Preparing(refused.append, lambda: None)
    plain = request("plain", [1, 2], 40, temperature=0.0, ignore_eos=True)
    preparing.submit(engine, request("words", [10, 11], 30, temperature=0.0, grammar=WORDS))
    preparing.submit(engine, request("words", [10, 11], 30, temperature=0.0, grammar=WORDS))
    preparing.submit(engine, request("gone", [10, 11], 30, temperature=0.0, grammar=WORDS))
    preparing.submit(engine, request("bad", [10, 11], 30, grammar=Grammar(kind="regex", text="(")))
    preparing.submit(engine, plain)
    assert engine.stats().waiting == 1, "only the plain one is in the engine"
    preparing.abort(engine, "gone")
    preparing.abort(engine, "never heard of")
    await run(engine, preparing, answers)
    answers.check(plain)
    assert text_of(answers.tokens["words"]) in LANGUAGE
    assert answers.last["gone"].finish_reason == "abort"
    assert {(one.request_id, one.parameter) for one in refused} == {("words", "id"), ("bad", "grammar")}
    engine.close()


async def test_so_many_compilations_wait_and_no_more():
    refused: list[Refused] = []
    engine, answers = make_engine(grammars=grammars()), Answers()
    preparing = Preparing(refused.append, lambda: None)
    for number in range(MAX_PREPARING + 1):
        preparing.submit(
            engine, request(f"r{number}", [1], 3, grammar=Grammar(kind="regex", text=f"a{{{number + 1}}}"))
        )
    assert [(one.request_id, one.overloaded) for one in refused] == [(f"r{MAX_PREPARING}", True)]
    await run(engine, preparing, answers)
    assert len(answers.last) == MAX_PREPARING
    engine.close()

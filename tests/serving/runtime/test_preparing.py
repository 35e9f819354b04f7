"""A grammar is compiled beside the step loop: what runs goes on, and aborts and refusals find their request."""

import asyncio
import os
import threading
import time

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")
pytest.importorskip("llguidance")

from netgain.ledger.clock import WallClock
from netgain.serving.blocks.scope import Scope
from netgain.serving.engine.request import Grammar
from netgain.serving.runtime.messages import Refused
from netgain.serving.runtime.preparing import MAX_PREPARING, Preparing
from netgain.serving.tiers.vault import Vault
from netgain.serving.tiers.vault_file import read_vault
from tests.serving.engine.features import Answers, make_engine, request
from tests.serving.engine.test_grammar import LANGUAGE, WORDS, grammars, text_of
from tests.serving.engine.tiered import Served, text
from tests.serving.engine.tiered import make_engine as with_tiers
from tests.serving.engine.tiered import request as tiered_request


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


async def test_what_ends_while_others_are_compiled_is_answered_at_once_and_never_compiled():
    """Else whoever sends hard grammars and leaves would hold up everybody's grammars, and deadlines would be late."""
    compiler = grammars()
    engine, answers = make_engine(grammars=compiler), Answers()
    preparing = Preparing(lambda refused: None, lambda: None)
    late, gone = (Grammar(kind="regex", text=text) for text in ("late", "gone"))
    with compiler._compiling:  # as if the one that is being compiled took for ever
        preparing.submit(engine, request("slow", [1], 3, grammar=WORDS))
        deadline_s = time.monotonic() + 0.05
        preparing.submit(engine, replace(request("late", [1], 3, grammar=late), deadline_s=deadline_s))
        preparing.submit(engine, request("gone", [1], 3, grammar=gone))
        await asyncio.sleep(0.01)
        preparing.abort(engine, "gone")
        answers.take(await engine.step())
        assert answers.last["gone"].finish_reason == "abort"
        await asyncio.sleep(0.1)
        preparing.hand_over(engine)
        answers.take(await engine.step())
        assert answers.last["late"].finish_reason == "deadline"
    await run(engine, preparing, answers)
    assert answers.last.keys() == {"slow", "late", "gone"}
    assert compiler.known(WORDS)
    assert not compiler.known(late)
    assert not compiler.known(gone)
    engine.close()


async def test_a_new_tenants_key_is_written_on_a_thread_while_the_loop_goes_on(tmp_path, monkeypatch):
    """The flush to the disk, and a lock that another process holds, were waited for between two steps."""
    pytest.importorskip("cryptography")
    flushed: list[int] = []
    may_flush = threading.Event()
    flush = os.fsync

    def told(descriptor: int) -> None:
        flushed.append(threading.get_ident())
        assert may_flush.wait(60)
        flush(descriptor)

    envelope = Vault(tmp_path / "vault.json")
    monkeypatch.setattr(os, "fsync", told)
    engine, refused = with_tiers(WallClock(), envelope=envelope), []
    preparing, served = Preparing(refused.append, lambda: None), Served(engine)
    salt = Scope(tenant="acme").salt
    many = [tiered_request(f"r{number}", text(1, 9), 2, salt=salt) for number in range(10)]
    for one in many:
        preparing.submit(engine, one)
    assert not engine.has_work, "they wait for the key"
    while not flushed:
        await asyncio.sleep(0.001)
    preparing.submit(engine, plain := tiered_request("plain", text(2, 9), 2, salt=b""))
    assert envelope.lacks(salt)
    may_flush.set()
    for _ in range(4000):
        preparing.hand_over(engine)
        if len(served.last) == 11:
            break
        await served.step()
        await asyncio.sleep(0.001)
    assert all(served.right(one) for one in (*many, plain))
    assert not refused
    assert threading.get_ident() not in flushed
    assert not envelope.lacks(salt)
    assert {key.tenant for key in read_vault(tmp_path / "vault.json").keys} >= {"acme"}
    engine.close()

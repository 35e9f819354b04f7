"""Recordings asked again: with their texts, or with made-up text of the same lengths and shared beginnings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netgain.errors import UsageError
from netgain.measuring.client.run import run
from netgain.measuring.record.as_workload import load_traffic, recorded_arrivals, recorded_workload
from netgain.measuring.record.entry import Asked, Entry
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.journal import Journal
from netgain.measuring.workload.arrivals import Recorded
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, chunk, final_usage

CHAT = "/v1/chat/completions"
Make = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def make(*entries: Entry, **options: Any) -> Path:
        path = tmp_path / "traffic.jsonl"
        journal = Journal(path, "proxy", **{"block_unit": "bytes", "block_size": 256, **options})
        for entry in entries:
            journal.write(entry)
        journal.close()
        return path

    return make


def _entry(number: int, **fields: Any) -> Entry:
    known: dict[str, Any] = {"endpoint": CHAT, "status": 200, "output_tokens": 12, "arrived_unix_s": 50.0 + number}
    return Entry(id=str(number), **{**known, **fields})


def _shared(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_recording_without_text_keeps_lengths_and_shared_beginnings(made: Make) -> None:
    hasher = Hasher()
    common, one, other = (os.urandom(n) for n in (1024, 300, 300))
    prompts = [common + one, common + other, os.urandom(600)]
    entries = [_entry(n, prompt_size=len(prompt), blocks=hasher.blocks(prompt)) for n, prompt in enumerate(prompts)]
    workload = load_traffic(made(*entries))
    texts = [item.messages[0].content for item in workload.items]
    assert [len(text) for text in texts] == [1324, 1324, 600]
    shared = _shared(texts[0], texts[1])
    assert 1024 <= shared < 1024 + 16, "shared as far as the recorded prompts, up to a word that happens to be the same"
    assert _shared(texts[0], texts[2]) < 16
    assert [item.max_tokens for item in workload.items] == [12] * 3
    assert all(item.ignore_eos for item in workload.items)
    assert workload.synthetic
    assert any("synthetic text" in note for note in workload.notes)


def test_mooncake_blocks_count_tokens_and_the_last_may_be_partial(made: Make) -> None:
    entry = _entry(0, endpoint=None, prompt_tokens=700, prompt_size=700, blocks=(1, 2))
    (item,) = load_traffic(made(entry, block_unit="tokens", block_size=512)).items
    assert item.prompt is not None
    assert len(item.prompt.split()) == 700


def test_a_recording_with_text_is_asked_again_as_it_was(made: Make) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    entries = [
        _entry(0, request={"messages": messages}, asked=Asked(max_tokens=30, temperature=0.5, top_p=0.9)),
        _entry(1, endpoint="/v1/completions", request={"prompt": ["once"]}),
        _entry(2, request={"messages": [{"role": "tool", "content": "x"}]}),
        _entry(3, endpoint="/v1/embeddings", request={"input": "x"}),
        _entry(4, status=500),
        _entry(5, error="the client left"),
        _entry(6, request={"messages": messages}, output_tokens=None),
    ]
    workload = load_traffic(made(*entries, with_text=True))
    chat, completion = workload.items
    assert [(message.role, message.content) for message in chat.messages] == [("system", "Be brief."), ("user", "hi")]
    assert (chat.max_tokens, chat.temperature, chat.top_p, chat.ignore_eos) == (30, 0.5, 0.9, False)
    assert (completion.prompt, completion.max_tokens, completion.temperature) == ("once", 12, 1.0)
    assert not workload.synthetic
    told = " ".join(workload.notes)
    assert "2 recorded requests: failed" in told
    assert "1 recorded request: on an endpoint" in told
    assert "1 recorded request: with messages other" in told


def test_output_lengths_without_counts_come_from_the_limit_or_the_chunks(made: Make) -> None:
    known: dict[str, Any] = {"prompt_size": 10, "output_tokens": None, "chunks": 9}
    path = made(
        _entry(0, **known, finish_reasons=("length",), asked=Asked(max_tokens=33, stream=True)),
        _entry(1, **known, finish_reasons=("stop",), asked=Asked(max_tokens=33, stream=True)),
        _entry(2, **known, finish_reasons=("stop",), asked=Asked(max_tokens=33)),
    )
    workload = load_traffic(path)
    assert [item.max_tokens for item in workload.items] == [33, 9]
    assert any("output lengths of 1 request:" in note for note in workload.notes)
    assert any("1 recorded request: whose output length is not known" in note for note in workload.notes)


def test_a_long_recording_is_cut_and_says_so(made: Make) -> None:
    workload = recorded_workload(made(*(_entry(n, prompt_size=10) for n in range(9))), most=4)
    assert len(workload.items) == 4
    assert any("5 recorded requests: beyond the first 4" in note for note in workload.notes)


def test_a_recording_with_nothing_to_ask_is_refused(made: Make) -> None:
    with pytest.raises(UsageError, match="1: whose prompt length is not known"):
        load_traffic(made(_entry(0)))
    with pytest.raises(UsageError, match="with and without text"):
        load_traffic(made(_entry(0, request={"prompt": "x"}), with_text=True))


def test_other_files_and_bundled_names_load_as_before(tmp_path: Path) -> None:
    assert load_traffic("edit").name == "edit"
    with pytest.raises(UsageError, match="did you mean 'edit'"):
        load_traffic("edits")
    (tmp_path / "own.jsonl").write_text('{"id": "a", "category": "c", "max_tokens": 3, "prompt": "x"}\n')
    assert not load_traffic(tmp_path / "own.jsonl").synthetic


async def test_recorded_arrivals_are_replayed_at_a_chosen_speed(made: Make) -> None:
    path = made(*(_entry(n, prompt_size=40, arrived_unix_s=1e9 + 0.4 * n) for n in range(4)))
    arrivals = recorded_arrivals(path, speed=4.0)
    assert arrivals.offsets_s(4) == pytest.approx([0.0, 0.1, 0.2, 0.3], abs=1e-6)
    script = Script(steps=[(0.3, chunk("x", finish="stop")), (0.3, final_usage(1)), (0.3, DONE)])
    async with ScriptedServer(lambda seen: script) as server:
        done = await run(server.url, "m", recorded_workload(path).items, arrivals)
        sent = [seen.at_s - server.seen[0].at_s for seen in server.seen]
    assert sent == pytest.approx([0.0, 0.1, 0.2, 0.3], abs=0.05)
    assert all(record.ok for record in done.records)


def test_arrivals_that_are_not_known_or_not_possible_are_refused(made: Make) -> None:
    with pytest.raises(UsageError, match="use a closed loop"):
        recorded_arrivals(made(_entry(0, prompt_size=9, arrived_unix_s=None)))
    with pytest.raises(UsageError, match="speed"):
        Recorded((0.0, 1.0), speed=0.0)
    with pytest.raises(UsageError, match="two requests at different times"):
        Recorded((0.0,))


def test_absurd_lengths_are_left_out_and_not_made_up(made: Make) -> None:
    path = made(
        _entry(0, prompt_size=99_999_999_999),
        _entry(1, prompt_size=40, output_tokens=99_999_999_999),
        _entry(2, prompt_size=40),
    )
    workload = load_traffic(path)
    assert len(workload.items) == 1
    assert "with prompts longer than" in " ".join(workload.notes)
    assert "with answers of more than" in " ".join(workload.notes)


def test_requests_of_the_responses_and_messages_apis_are_asked_as_chats(made: Make) -> None:
    said = {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    path = made(
        _entry(0, endpoint="/v1/responses", request={"input": "hi"}),
        _entry(1, endpoint="/v1/responses", request=said),
        _entry(2, endpoint="/v1/messages", request={"messages": [{"role": "user", "content": "y"}]}),
        _entry(3, endpoint="/v1/messages", request={"system": "s", "messages": [{"role": "user", "content": "y"}]}),
        with_text=True,
    )
    workload = load_traffic(path)
    assert [item.messages[0].content for item in workload.items if item.messages] == ["hi", "x", "y"]
    assert any("1 recorded request: with instructions" in note for note in workload.notes)

"""Prompts with chunks over HTTP."""

import json

import pytest

from netgain.cli.main import run
from netgain.measuring.quality.behind_chunks import score_behind_chunks
from netgain.measuring.quality.teacher_forcing import Teacher, Unscored
from netgain.measuring.quality.texts import Text
from tests.waiting import wait_for

CHUNKS = ["a lamp that nobody lit and that burns. ", "the second report, of another harbour. "]
PROMPT = "Read. " + CHUNKS[0] + CHUNKS[1] + "say n"


@pytest.fixture(scope="module")
def blending(start_server, server_options):
    with start_server(
        *server_options, "--set", "engine.blending.enabled=true", "--set", "fleet.heartbeat_s=0.1"
    ) as running:
        yield running


def completion(server, netgain=None, **body):
    fields = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    if netgain is not None:
        fields["netgain"] = netgain
    return server.post("/v1/completions", **(fields | body))


def test_an_answer_says_what_of_its_chunks_was_reused_and_that_it_is_lossy(blending):
    plain = completion(blending).json
    first = completion(blending, {"chunks": CHUNKS, "blend_ratio": 0, "record": True}).json
    second = completion(blending, {"chunks": CHUNKS[::-1], "blend_ratio": 0}).json
    assert "blending_details" not in plain["usage"]
    assert first["choices"][0]["text"] == plain["choices"][0]["text"]
    told, again = first["usage"]["blending_details"], second["usage"]["blending_details"]
    size = sum(map(len, CHUNKS))  # a byte is a token, but for the words of the chains
    assert told["lossy"] is True
    assert told["selection"] == "naive"
    assert told["chunks"] == 2
    assert size / 2 < told["chunk_tokens"] <= size
    assert told["computed_alone_tokens"] == told["chunk_tokens"]
    assert again["computed_alone_tokens"] == 0
    assert again["recomputed_tokens"] == 0
    assert first["netgain"]["blending"] == told


def test_cache_stats_of_a_server_tell_what_was_found_reused_and_moved(blending, capsys):
    for _ in range(2):
        completion(blending, {"chunks": ["a lamp that nobody lit and that burns. "], "blend_ratio": 0})
    wait_for(  # with the next heartbeat
        lambda: (
            blending.metric("netgain_blend_chunks_found_total") >= 1 and not blending.metric("netgain_requests_running")
        )
    )
    assert run(["cache", "stats", blending.url, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    told = told["blending"]
    assert told["requests"] >= 2
    assert told["chunks_found"] >= 1
    assert told["found_rate"] == told["chunks_found"] / (told["chunks_found"] + told["chunks_missed"])
    assert told["reused_tokens"] + told["recomputed_tokens"] == told["chunk_tokens"] > 0
    assert told["recomputed_ratio"] == told["recomputed_tokens"] / told["chunk_tokens"]
    assert told["rotation_s"] > 0
    assert blending.metric("netgain_blend_chunks_found_total") == told["chunks_found"]
    assert blending.metric("netgain_blend_recomputed_ratio_count") >= 2
    assert run(["cache", "stats", blending.url]) == 0
    assert "prompts with chunks" in capsys.readouterr().out


def test_cache_stats_of_what_is_no_server_are_one_line(free_port, capsys):
    assert run(["cache", "stats", f"http://127.0.0.1:{free_port}"]) != 0
    assert "gives no metrics" in capsys.readouterr().err


def test_ratio_1_and_a_model_without_calibration_lose_nothing(blending):
    for netgain in ({"chunks": CHUNKS, "blend_ratio": 1}, {"chunks": CHUNKS}):
        told = completion(blending, netgain).json["usage"]["blending_details"]
        assert told["lossy"] is False
        assert told["recomputed_tokens"] == told["chunk_tokens"] > 0


def test_chunks_in_a_chat(blending):
    messages = [{"role": "user", "content": PROMPT}]
    netgain = {"chunks": CHUNKS, "blend_ratio": 0.5}
    answer = blending.post("/v1/chat/completions", messages=messages, max_tokens=4, netgain=netgain)
    assert answer.json["usage"]["blending_details"]["selection"] == "deviating 50%"


@pytest.mark.parametrize(
    ("netgain", "said"),
    [
        ({"chunks": ["not in there"]}, "netgain.chunks[0]"),
        ({"chunks": [CHUNKS[0], CHUNKS[0]]}, "netgain.chunks[1]"),
        ({"chunks": []}, "chunks"),
        ({"chunks": [""]}, "chunks"),
        ({"chunks": "text"}, "chunks"),
        ({"chunks": CHUNKS, "blend_ratio": 1.5}, "blend_ratio"),
        ({"chunks": CHUNKS, "blend_ratio": "all"}, "blend_ratio"),
        ({"blend_ratio": 0.5}, "netgain.blend_ratio is for netgain.chunks"),
    ],
)
def test_what_is_wrong_with_chunks_is_said(blending, netgain, said):
    answer = completion(blending, netgain)
    assert answer.status == 400
    assert said in answer.json["error"]["message"] + str(answer.json["error"]["param"])


def test_chunks_of_several_prompts_and_their_log_probabilities_are_refused(blending):
    assert completion(blending, {"chunks": CHUNKS}, prompt=[PROMPT, PROMPT]).status == 400
    answer = completion(blending, {"chunks": CHUNKS}, prompt_logprobs=1)
    assert answer.status == 400
    assert "log-probabilities of a prompt" in answer.json["error"]["message"]
    assert "logprobs_from" in answer.json["error"]["message"]


async def test_what_follows_chunks_is_scored_and_at_ratio_1_as_if_it_had_none(blending):
    ids = tuple(blending.post("/tokenize", prompt=f"{PROMPT} - and of whom is it?").json["tokens"])
    behind = len(ids) - 8
    async with Teacher(blending.url) as teacher:
        assert teacher.joins_chunks
        form = await teacher.find_form(Text(name="p", category="c", prompt=ids), of_prompt=True)
        text = Text(name="p", category="c", prompt=ids, chunks=tuple(CHUNKS), behind=behind)
        joined = await score_behind_chunks(teacher, text, form)
        teacher.joins_chunks = False
        plain = await score_behind_chunks(teacher, text, form)
    assert not isinstance(joined, Unscored), joined
    assert joined.tokens == plain.tokens
    assert len(joined.laws) == len(ids) - behind - 1
    assert joined.laws == plain.laws


def test_a_server_that_was_not_asked_to_blend_says_how(server):
    answer = completion(server, {"chunks": CHUNKS})
    assert answer.status == 400
    assert "engine.blending.enabled=true" in answer.json["error"]["message"]

"""Servers that tell less, or tell it otherwise: what cannot be known is None with the reason, never a number."""

import json
from typing import Any

import pytest

from netgain.measuring.quality.laws import Law, Told, read_completion
from netgain.measuring.quality.measure import QualityAsk, measure_quality
from netgain.measuring.quality.near_ties import compare_answers
from netgain.measuring.quality.result import Quality
from netgain.measuring.quality.texts import Text
from tests.measuring.scripted_server import Script, ScriptedServer, Seen

TEXTS = tuple(Text(name=f"t{number}", category="x", prompt=f"text number {number}") for number in range(3))


def answer(seen: Seen, logprobs: Any, prompt_tokens: int | None = 3) -> Script:
    body: dict[str, Any] = {"choices": [{"index": 0, "text": "...", "logprobs": logprobs, "finish_reason": "length"}]}
    if prompt_tokens is not None:
        body["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": 1}
    return Script(steps=((0.0, json.dumps(body).encode()),), content_type="application/json")


def refuse(status: int, message: str) -> Script:
    body = json.dumps({"error": {"message": message}}).encode()
    return Script(steps=((0.0, body),), status=status, content_type="application/json")


def lists(*values: float | None, tokens: str = "abcd") -> dict[str, Any]:
    return {
        "tokens": list(tokens[: len(values)]),
        "token_logprobs": list(values),
        "top_logprobs": [None if value is None else {t: value} for t, value in zip(tokens, values, strict=False)],
        "text_offset": list(range(len(values))),
    }


def llama_cpp(seen: Seen) -> Script:
    """llama.cpp's server ignores echo, and gives log-probabilities of what it generates in the form of chats."""
    entries = [
        {"id": 5, "token": " a", "bytes": [32, 97], "logprob": -0.2, "top_logprobs": [
            {"id": 5, "token": " a", "bytes": [32, 97], "logprob": -0.2},
            {"id": 6, "token": " b", "bytes": [32, 98], "logprob": -1.9},
        ]}
    ]  # fmt: skip
    return answer(seen, {"content": entries * seen.body["max_tokens"]})


async def quality_of(script: Any, against: Any = None, **fields: Any) -> Quality:
    async with ScriptedServer(script) as server, ScriptedServer(against or script) as other:
        ask = QualityAsk(url=server.url, against=other.url, texts="none", texts_given=TEXTS, **fields)
        return await measure_quality(ask, Silence())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda seen: answer(seen, None), "gives no log-probabilities"),
        (llama_cpp, "prompts are not echoed"),
        (lambda seen: refuse(404, "no such route"), "status 404: no such route"),
        (lambda seen: answer(seen, lists(None, -1.0, -2.0), prompt_tokens=None), "does not say how many tokens"),
        (lambda seen: answer(seen, lists(None, -1.0)), "gives 2 of the prompt's 3 tokens"),
        (lambda seen: answer(seen, lists(None, None, -2.0, -1.0)), "2 of 3 positions have no value"),
        (lambda seen: answer(seen, lists(None, 0.0, 0.0, 0.0)), "every log-probability is 0"),
        (lambda seen: answer(seen, lists(None, -1.0, 2.0, -1.0)), "above 0"),
        (lambda seen: answer(seen, {**lists(None, -1.0, -1.0), "tokens": ["a"]}), "differ in length"),
        (lambda seen: Script(steps=((0.0, b"<html>"),), content_type="text/html"), "no completion"),
    ],
    ids=["none", "llama.cpp", "no route", "no usage", "short", "holes", "zeros", "positive", "ragged", "html"],
)
async def test_what_a_server_does_not_tell_is_unknown_with_its_reason(script: Any, reason: str) -> None:
    """vllm-project/vllm#17876: log-probabilities that were all 0.0; vllm-project/vllm#3914: fewer than the prompt has."""
    quality = await quality_of(script)
    assert quality.baseline.perplexity is None
    assert reason in str(quality.baseline.perplexity_missing)
    assert quality.comparison is not None
    assert quality.comparison.divergence is None
    assert reason in str(quality.comparison.divergence_missing)


async def test_greedy_answers_are_compared_with_a_server_that_scores_no_prompts() -> None:
    found = (await quality_of(llama_cpp)).comparison
    assert found is not None
    assert found.sameness is not None
    assert (found.sameness.prompts, found.sameness.tokens, found.sameness.partings) == (3, 96, ())


async def test_a_server_is_asked_in_the_best_form_that_it_takes() -> None:
    """One that knows neither token ids nor twenty tokens, beside one that does: both are asked in the weaker form."""
    asked: list[tuple[int, bool]] = []

    def strict(seen: Seen) -> Script:
        if "return_tokens_as_token_ids" in seen.body or seen.body["logprobs"] > 5:
            return refuse(400, "logprobs is at most 5")
        return answer(seen, lists(None, -1.0, -2.0, -0.5))

    def able(seen: Seen) -> Script:
        if seen.body.get("echo"):
            asked.append((seen.body["logprobs"], "return_tokens_as_token_ids" in seen.body))
        return answer(seen, lists(None, -1.0, -2.0, -0.5))

    found = (await quality_of(strict, able)).comparison
    assert found is not None
    assert found.divergence is not None
    assert found.divergence.kl.positions == 6  # two of each text: the generated token is not the prompt's
    assert asked == [(20, True), *[(5, False)] * 3]


async def test_texts_cut_into_other_tokens_are_not_compared_by_position() -> None:
    found = await quality_of(
        lambda seen: answer(seen, lists(None, -1.0, -2.0)),
        lambda seen: answer(seen, lists(None, -1.0, -2.0, tokens="xyz")),
    )
    assert found.comparison is not None
    assert "different tokens" in str(found.comparison.divergence_missing)
    assert found.candidate is not None
    assert found.candidate.perplexity is not None
    assert found.candidate.perplexity.bits_per_byte == found.baseline.perplexity.bits_per_byte


def test_a_parting_at_a_near_tie_is_told_from_a_clear_one() -> None:
    def said(token: str, **others: float) -> Law:
        return Law(token, others[token], others)

    start = said("a", a=-0.1)
    near = ("near", [start, said("b", b=-0.70, c=-0.72)], [start, said("c", c=-0.69, b=-0.71)])
    clear = ("clear", [said("b", b=-0.1, c=-3.0)], [said("c", c=-0.2, b=-2.5)])
    hidden = ("hidden", [said("b", b=-0.1)], [said("c", c=-0.1)])
    shorter = ("shorter", [start], [start, start])
    found = compare_answers([near, clear, hidden, shorter, ("same", [start], [start])])
    assert found is not None
    told = {parting.prompt: (parting.position, parting.near_tie) for parting in found.partings}
    assert told == {"near": (1, True), "clear": (0, False), "hidden": (0, None), "shorter": (1, None)}
    assert found.near_ties == 1
    assert found.partings[0].gap == pytest.approx(0.02)


def test_minus_infinity_is_read_as_servers_write_it() -> None:
    body = json.dumps({"choices": [{"logprobs": lists(None, -9999.0, -0.5)}], "usage": {"prompt_tokens": 3}}).encode()
    told = read_completion(body, as_ids=False)
    assert isinstance(told, Told)
    assert told.laws[1] is not None
    assert told.laws[1].logprob == -9999.0


class Silence:
    def phase(self, text: str, steps: int | None = None) -> None:
        return

    def step(self, text: str = "") -> None:
        return

    def found(self, text: str) -> None:
        return

"""What speculation promises on engines whose verifier is not coupled: greedy answers equal but for near-ties, or the law."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web

from netgain.deciding.decide.promise_kept import Kept, judge_promise
from netgain.deciding.decide.quality import Judged
from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.quality_gate import QualityGate
from netgain.deciding.report.document import document_of
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.promise import promised_on
from netgain.measuring.quality.paired_scores import compare_scores
from netgain.measuring.quality.result import Quality, QualityComparison, ServerQuality
from netgain.measuring.workload.item import Item
from tests.deciding.conftest import build_record
from tests.deciding.test_report import outcome_of, trial_of

WORDS = ("the", "answer", "is", "red", "blue", "now")
LAWS = {"near": {"red": -0.70, "blue": -0.72}, "clear": {"red": -0.1, "blue": -3.0}, "one": {"red": -0.1}}


@contextlib.asynccontextmanager
async def engine(law: str | None, tokenizes: bool = True) -> AsyncIterator[str]:
    """Tokens are words. After "the answer is" it says `law`; None: it gives no log-probabilities."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def tokenize(request: web.Request) -> web.Response:
        if not tokenizes:
            raise web.HTTPNotFound
        text = (await request.json())["prompt"]
        return web.json_response({"tokens": [WORDS.index(word) for word in text.split()]})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["prompt"] == [0, 1, 2]  # the prompt "the", and the answer up to where both part
        if law is None:
            return web.json_response({"choices": [{"index": 0, "text": "red", "logprobs": None}]})
        top = {f"token_id:{WORDS.index(word)}": value for word, value in LAWS[law].items()}
        likeliest = max(top, key=lambda token: top[token])
        told = {"tokens": [likeliest], "token_logprobs": [top[likeliest]], "top_logprobs": [top]}
        return web.json_response({"choices": [{"index": 0, "text": "red", "logprobs": told}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def trial(differing: Mapping[str, str], prompts: int = 12) -> list[Observation]:
    """Mirrored blocks of a candidate that is 1.5x as fast; `differing`: its answers where they are not the baseline's."""
    found = []
    for group in range(prompts):
        for block, arm in enumerate((BASELINE, CANDIDATE, CANDIDATE, BASELINE)):
            name = f"p{group}"
            text = differing.get(name, "answer is red") if arm == CANDIDATE else "answer is red"
            record = build_record(name, start_s=10.0 * (4 * group + block), token_s=0.015 if arm == BASELINE else 0.01)
            record = msgspec.structs.replace(record, text=text, server=None)
            found.append(Observation(arm=arm, start=0, group=group, block=4 * group + block, record=record))
    return found


def items(temperature: float = 0.0, prompts: int = 12) -> list[Item]:
    return [
        Item(id=f"p{at}", category="c", max_tokens=8, prompt="the", temperature=temperature) for at in range(prompts)
    ]


async def kept(
    law: str | None,
    differing: Mapping[str, str],
    temperature: float = 0.0,
    quality: Judged | None = None,
    tokenizes: bool = True,
) -> tuple[Kept, str]:
    """What is judged of the promise, and the verdict that follows."""
    promise = promised_on(CATALOGUE["ngram"].kind, "vllm")
    seen = trial(differing)
    async with engine(law, tokenizes) as url:
        arms = {name: SimpleNamespace(url=url, headers={}) for name in (BASELINE, CANDIDATE)}
        found = await judge_promise(promise, seen, items(temperature), arms, "vllm", "m", quality)  # type: ignore[arg-type]
    terms = Terms(promises_identity=promise == "token-identical", doubts=found.doubts, losses=found.losses)
    return found, analyse(seen, terms).verdict.decision


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft", "heads"])
def test_only_the_coupled_verifier_promises_tokens(name):
    kind = CATALOGUE[name].kind
    assert promised_on(kind, "netgain") == "token-identical"
    assert {promised_on(kind, other) for other in ("vllm", "sglang", "llama.cpp")} == {"law-preserving"}
    assert promised_on("lossy", "vllm") == "lossy"


async def test_equal_answers_are_adopted():
    found, decision = await kept("clear", {})
    assert (found.state, decision) == ("held", "adopt")


@pytest.mark.parametrize("answer", ["answer is blue", "answer is"], ids=["another token", "ended"])
async def test_a_near_tie_of_rounding_rejects_nothing(answer):
    found, decision = await kept("near", {"p3": answer})
    assert (found.state, found.doubts, decision) == ("held", (), "adopt")
    assert "1 part at a near-tie" in found.says


@pytest.mark.parametrize(
    ("law", "tokenizes", "told"),
    [
        ("clear", True, "1 of 1 part where the choice was clear"),
        ("one", True, "is not known"),
        (None, True, "is not known"),
        ("near", False, "is not known"),
    ],
)
async def test_other_answers_hold_adoption_back_until_their_quality_is_measured(law, tokenizes, told):
    found, decision = await kept(law, {"p3": "answer is blue"}, tokenizes=tokenizes)
    assert (found.state, decision) == ("not shown", "inconclusive")
    assert told in found.doubts[0]
    assert "--tasks FILE" in found.doubts[0]


@pytest.mark.parametrize(("worse", "state", "decision"), [(False, "held", "adopt"), (True, "breached", "reject")])
async def test_measured_quality_decides_where_answers_differ(worse, state, decision):
    found, decided = await kept("clear", {"p3": "answer is blue"}, quality=judged(worse))
    assert (found.state, decided) == (state, decision)


async def test_sampled_answers_are_not_compared_and_that_is_said():
    found, decision = await kept("clear", {f"p{at}": "answer is blue" for at in range(12)}, temperature=0.8)
    assert (found.state, decision) == (None, "adopt")
    assert "12 sampled answers not compared" in found.caveats("vllm")[0].says


def test_the_verdict_names_what_was_promised_on_this_engine(make_record):
    outcome = outcome_of(trial_of(make_record))
    assert document_of(outcome).technique.kind == "token-identical"
    assert document_of(msgspec.structs.replace(outcome, engine="vllm")).technique.kind == "law-preserving"


def judged(worse: bool) -> Judged:
    scores = {f"t{at}": 1.0 for at in range(400)}
    tasks = compare_scores(scores, dict.fromkeys(scores, 0.0 if worse else 1.0), 0.01, 0)
    server = ServerQuality(url="u", model="m", perplexity=None, perplexity_missing="none", unscored=(), tasks=None)
    compared = QualityComparison(
        divergence=None,
        divergence_missing="none",
        sameness=None,
        sameness_missing="none",
        tasks=tasks,
        tasks_missing=None,
    )
    measured = Quality(
        netgain="0",
        began_unix_s=0.0,
        seconds=1.0,
        texts="none",
        task_file="t.jsonl",
        scorer=None,
        baseline=server,
        candidate=server,
        comparison=compared,
    )
    state = "fail" if worse else "pass"
    return Judged(measured=measured, gate=QualityGate(state=state, says="tasks", findings=()))

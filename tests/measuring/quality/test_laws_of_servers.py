"""What is measured over HTTP is what the engine computes in this process, to the last digit."""

import itertools
import json
import math

import pytest

from netgain.cli.main import run
from netgain.measuring.quality.divergence import bounded_kl, divergence
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.measure import QualityAsk, measure_quality
from netgain.measuring.quality.perplexity import perplexity_of
from netgain.measuring.quality.teacher_forcing import TOP, Form, Scored, Teacher
from netgain.measuring.quality.texts import Text
from tests.measuring.quality.conftest import Served

pytest.importorskip("torch")

TEXTS = tuple(
    Text(name=name, category=name[0], prompt=text)
    for name, text in (
        ("prose-1", "The ferry leaves at eight, unless the wind is against it; then it leaves when it can."),
        ("prose-2", "Nobody had seen the key since Tuesday, and by Friday nobody looked."),
        ("code-1", "for (let i = 0; i < rows.length; i++) { total += rows[i].price; }"),
        ("data-1", '{"city": "Graz", "population": 291134, "rivers": ["Mur"], "größe": null}'),
    )
)


@pytest.fixture(scope="module")
def exact(served: tuple[Served, Served]) -> list[list[tuple[list[int], list[list[float]]]]]:
    """By server and text: the prompt's ids, and the whole law of every token but the first, by the model in this process."""
    import torch

    from netgain.serving.model.cache import PagedKV
    from netgain.serving.model.kernels.torch_kernels import TorchKernels
    from netgain.serving.model.kv import DTYPES
    from netgain.serving.model.load import load_model

    found = []
    for one in served:
        loaded = load_model(one.folder, "fp32", TorchKernels())
        texts = []
        for text in TEXTS:
            ids = loaded.tokenizer.encode(str(text.prompt), start=True)
            blocks = -(-len(ids) // 16)
            kv = PagedKV(loaded.config, blocks, 16, DTYPES[one.kv_dtype])
            places = torch.arange(len(ids) - 1)
            table = torch.arange(blocks, dtype=torch.int32)[None]
            plan = loaded.model.kernels.plan(places, torch.zeros_like(places), table, 16)
            logits = loaded.model.forward(torch.tensor(ids[:-1]), places, plan, kv, places)
            texts.append((list(ids), torch.log_softmax(logits.double(), dim=1).tolist()))
        found.append(texts)
    return found


async def scores(served: Served) -> list[Scored]:
    form = Form(TOP, True)
    async with Teacher(served.url) as teacher:
        assert await teacher.find_form(TEXTS[0], of_prompt=True) == form
        found = await teacher.score_all(TEXTS, form)
    assert all(isinstance(one, Scored) for one in found), found
    return [one for one in found if isinstance(one, Scored)]


async def test_perplexity_over_http_is_the_engines_own(served, exact) -> None:
    for one, texts in zip(served, exact, strict=True):
        measured = perplexity_of(await scores(one))
        losses = []
        for ids, laws in texts:
            losses += [-law[token] for law, token in zip(laws, ids[1:], strict=True)]
        assert measured is not None
        assert measured.perplexity.positions == len(losses)
        assert measured.perplexity.value == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-12)
        assert measured.perplexity.low < measured.perplexity.value < measured.perplexity.high
        size = sum(len(str(text.prompt).encode()) for text in TEXTS)
        assert measured.bits_per_byte == pytest.approx(math.fsum(losses) / math.log(2) / size, rel=1e-12)
        assert list(measured.by_category) == ["p", "c", "d"]


async def test_kl_over_http_is_the_exact_divergence_of_the_merged_laws_and_bounds_the_true_one(served, exact) -> None:
    plain, disturbed = [await scores(one) for one in served]
    measured = divergence(plain, disturbed, TOP)
    assert not isinstance(measured, str)
    true, merged, same, unseen = [], [], [], []
    for (ids, ours), (_, theirs) in zip(*exact, strict=True):
        for left, right, token in zip(ours, theirs, ids[1:], strict=True):
            p, q = dict(enumerate(left)), dict(enumerate(right))
            true.append(math.fsum(math.exp(p[t]) * (p[t] - q[t]) for t in p))
            shown = {*sorted(p, key=lambda t: (-p[t], t))[:TOP], token}
            shown &= {*sorted(q, key=lambda t: (-q[t], t))[:TOP], token}
            rest_p = math.fsum(math.exp(p[t]) for t in p if t not in shown)
            rest_q = math.fsum(math.exp(q[t]) for t in q if t not in shown)
            kl = math.fsum(math.exp(p[t]) * (p[t] - q[t]) for t in shown) + rest_p * math.log(rest_p / rest_q)
            merged.append(kl)
            unseen.append(rest_p)
            same.append(max(p, key=p.__getitem__) == max(q, key=q.__getitem__))
    assert measured.kl.value == pytest.approx(sum(merged) / len(merged), rel=1e-6)
    assert measured.kl_largest == pytest.approx(max(merged), rel=1e-6)
    assert measured.unseen == pytest.approx(sum(unseen) / len(unseen), rel=1e-6)
    assert measured.same_first.value == sum(same) / len(same)
    assert 0.0 < measured.kl.value < sum(true) / len(true)  # a lower bound of what is really there
    assert all(bound <= whole + 1e-12 for bound, whole in zip(merged, true, strict=True))
    ours, theirs = perplexity_of(plain), perplexity_of(disturbed)
    assert ours is not None
    assert theirs is not None
    ratio = theirs.perplexity.value / ours.perplexity.value
    assert measured.perplexity_ratio.value == pytest.approx(ratio, rel=1e-9)


def test_the_bound_is_the_divergence_itself_when_nothing_is_merged() -> None:
    p = {"a": math.log(0.5), "b": math.log(0.3), "c": math.log(0.2)}
    q = {"a": math.log(0.4), "b": math.log(0.5), "c": math.log(0.1)}
    whole, rest = bounded_kl(Law("a", p["a"], p), Law("a", q["a"], q))
    assert whole == pytest.approx(0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.5) + 0.2 * math.log(2.0))
    assert rest < 1e-12
    for size in (1, 2):
        for kept in itertools.combinations("abc", size):
            fewer, hidden = bounded_kl(
                Law("a", p["a"], {t: p[t] for t in kept}), Law("a", q["a"], {t: q[t] for t in kept})
            )
            assert fewer <= whole + 1e-12
            assert hidden == pytest.approx(sum(math.exp(p[t]) for t in "abc" if t not in kept))


async def test_a_server_beside_itself_differs_in_nothing(served) -> None:
    ask = QualityAsk(url=served[0].url, against=served[0].url, texts="none", texts_given=TEXTS, answers=2)
    quality = await measure_quality(ask, Silence())
    found = quality.comparison
    assert found is not None
    assert found.divergence is not None
    assert found.divergence.kl.value == found.divergence.kl_largest == 0.0
    assert found.divergence.same_first.value == found.divergence.perplexity_ratio.value == 1.0
    assert found.sameness is not None
    assert (found.sameness.prompts, found.sameness.partings) == (2, ())
    assert found.tasks_missing == "no task set was given"


async def test_token_ids_are_scored_as_the_text_is(served) -> None:
    """A recorded conversation is known by its ids."""
    async with Teacher(served[0].url) as teacher:
        as_text = await teacher.score(TEXTS[0], Form(TOP, True))
        assert isinstance(as_text, Scored)
        ids = tuple(int(token.removeprefix("token_id:")) for token in as_text.tokens)
        as_ids = await teacher.score(Text(name="ids", category="p", prompt=ids), Form(TOP, True))
        assert isinstance(as_ids, Scored)
        assert as_ids.laws == as_text.laws
        assert as_ids.text.size_bytes is None


async def test_the_disturbed_servers_answers_part_and_the_gap_is_told(served) -> None:
    ask = QualityAsk(url=served[0].url, against=served[1].url, texts="none", texts_given=TEXTS)
    found = (await measure_quality(ask, Silence())).comparison
    assert found is not None
    assert found.sameness is not None
    assert found.sameness.partings
    for parting in found.sameness.partings:
        assert parting.baseline != parting.candidate
        assert parting.gap is None or parting.gap >= 0.0


async def test_a_text_that_does_not_fit_is_named_and_left_out(served) -> None:
    long = Text(name="long", category="x", prompt="word " * 400)
    ask = QualityAsk(url=served[0].url, texts="none", texts_given=(*TEXTS, long))
    quality = await measure_quality(ask, Silence())
    assert quality.baseline.perplexity is not None
    assert quality.baseline.perplexity.perplexity.texts == len(TEXTS)
    (left_out,) = quality.baseline.unscored
    assert left_out.name == "long"
    assert "status 400" in left_out.reason


async def test_tasks_are_asked_scored_and_compared(served, tmp_path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(
        '{"id": "any", "prompt": "ab", "match": "regex", "expected": ".|\\\\n", "max_tokens": 4}\n'
        '{"id": "never", "prompt": "ab", "match": "exact", "expected": "the right answer", "max_tokens": 4}\n'
        '{"id": "by-command", "prompt": "cd", "match": "scorer", "max_tokens": 4}\n'
        '{"id": "broken", "prompt": "cd", "match": "scorer", "expected": "fail", "max_tokens": 4}\n'
    )
    scorer = 'grep -q \'"expected":"fail"\' && { echo no >&2; exit 1; } || echo 0.25'
    ask = QualityAsk(
        url=served[0].url, against=served[1].url, texts="none", tasks=str(tasks), scorer=scorer, scorer_timeout_s=10.0
    )
    quality = await measure_quality(ask, Silence())
    own = quality.baseline.tasks
    assert own is not None
    assert own.scores == {"any": 1.0, "never": 0.0, "by-command": 0.25, "broken": None}
    assert own.failed == 1
    assert own.answers[3].problem == "the scorer ended with code 1: 'no'"
    assert own.mean == pytest.approx(1.25 / 3)
    assert quality.comparison is not None
    paired = quality.comparison.tasks
    assert paired is not None
    assert (paired.items, paired.left_out, paired.state) == (3, 1, "too few")
    assert quality.baseline.perplexity_missing == "no texts were given"


def test_the_command_gates_a_disturbed_candidate(served, tmp_path, capsys) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": str(text.prompt) * 2, "name": text.name}) for text in TEXTS * 6))
    plain, disturbed = (one.url for one in served)
    asked = ["quality", plain, "--against", disturbed, "--texts", str(texts), "--answers", "2", "--gate"]
    assert run([*asked, "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["version"]) == ("netgain.quality", 2)
    assert told["gate"]["state"] == "fail"
    assert told["quality"]["comparison"]["divergence"]["kl"]["positions"] > 2000
    assert run(asked) == 4
    shown = capsys.readouterr().out
    assert "FAIL quality is lost" in shown
    assert "KL per position, at least (nats)" in shown
    assert run(["quality", plain, "--against", plain, *asked[4:]]) == 0
    assert "PASS quality holds" in capsys.readouterr().out


class Silence:
    def phase(self, text: str, steps: int | None = None) -> None:
        return

    def step(self, text: str = "") -> None:
        return

    def found(self, text: str) -> None:
        return

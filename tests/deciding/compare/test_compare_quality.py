"""A candidate that may answer worse is adopted only when its quality was measured beside its speed, and holds."""

import json

import msgspec
import pytest

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.quality import worth
from netgain.deciding.compare.rule import overrides_of, rule
from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import QualityAsked
from netgain.deciding.compare.traits import DECLARABLE, Trait
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.identity import Identity
from tests.deciding.compare.paced_server import paced_server

CARD = {"weights": "ab" * 32, "dtype": "bf16", "kv_dtype": "bf16", "devices": 1, "memory_bytes": 2**30}
SAME = Identity(basis="text", compared=24, differing=(), baseline_differs=())


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    lines = [{"id": f"t{n}", "prompt": f"{n}", "expected": ["word"], "max_tokens": 2} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def rounded(dtype="q4_1", **options):
    return paced_server(
        owner="netgain", card=json.dumps({**CARD, "dtype": dtype}), first_s=0.002, token_s=0.002, **options
    )


def test_other_weights_are_not_adopted_before_their_quality_was_measured(settings, tasks, tmp_path):
    asked = {"overrides": ("dtype=it is what is tried",)}
    # a first token far sooner: what a busy machine adds to one must not come near the guard of TTFT
    with paced_server(owner="netgain", card=json.dumps(CARD), first_s=0.03) as before, rounded() as after:
        unmeasured = compare(settings(before, after, **asked), Silence())
        quality = QualityAsked(texts="none", tasks=tasks, margin=0.2)
        measured = compare(settings(before, after, **asked, quality=quality, output=tmp_path / "measured"), Silence())
    verdict = unmeasured.analysis.verdict
    assert (verdict.finding, verdict.decision) == ("faster", "inconclusive")
    assert any("dtype (bf16 against q4_1)" in why and "--texts bundled" in why for why in verdict.reasons)
    assert document_of(unmeasured).technique.kind == "lossy"
    assert document_of(unmeasured).quality.state is None
    assert measured.analysis.verdict.decision == "adopt", measured.analysis.verdict.reasons
    document = document_of(measured)
    assert (document.technique.kind, document.quality.state) == ("lossy", "held")
    assert (document.quality.tasks[0].name, document.quality.tasks[0].items) == ("tasks", 40)


def test_a_faster_candidate_that_loses_quality_is_rejected(settings, tasks):
    quality = QualityAsked(texts="none", tasks=tasks, margin=0.2)
    with paced_server(owner="netgain", card=json.dumps(CARD)) as before, rounded("bf16", says="mot") as after:
        outcome = compare(settings(before, after, quality=quality), Silence())
    verdict = outcome.analysis.verdict
    assert (verdict.finding, verdict.decision) == ("faster", "reject")
    assert "quality is lost: task score 100.0% -> 0.0%" in verdict.reasons[0]
    assert outcome.lossy == ("24 of 24 answers differ",)


def test_servers_that_cannot_be_asked_for_laws_leave_quality_not_shown(settings):
    with paced_server(owner="netgain", card=json.dumps(CARD)) as before, rounded() as after:
        quality = QualityAsked()
        outcome = compare(settings(before, after, quality=quality, overrides=("dtype=it is what is tried",)), Silence())
    assert outcome.analysis.verdict.decision == "inconclusive"
    assert any("not enough evidence of quality" in why for why in outcome.analysis.verdict.reasons)
    assert outcome.quality.state == "not shown"


@pytest.mark.parametrize(
    ("fields", "identity", "reasons"),
    [
        ({}, SAME, 0),
        ({"kv_dtype": "int8"}, SAME, 1),
        ({"weights": "cd"}, SAME, 1),
        ({"memory": 2}, SAME, 0),
        ({}, msgspec.structs.replace(SAME, differing=("a",)), 1),
        ({}, msgspec.structs.replace(SAME, differing=("a",), baseline_differs=("a",)), 0),
        ({"dtype": "q4_1"}, msgspec.structs.replace(SAME, differing=("a",)), 2),
    ],
)
def test_what_makes_quality_needed(settings, fields, identity, reasons):
    before = {"weights": "ab", "dtype": "bf16", "kv_dtype": "bf16", "memory": 1}
    traits = [{name: Trait(value, "server") for name, value in one.items()} for one in (before, {**before, **fields})]
    ruling = rule(*traits, "equal resources", overrides_of([f"{name}=why" for name in fields]), DECLARABLE)
    found = worth(identity, ruling, settings("http://a:1", "http://b:1"), None)
    assert len(found.reasons) == reasons
    assert len(found.doubts) == min(1, reasons)
    assert not found.losses

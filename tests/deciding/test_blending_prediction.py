"""What blending is predicted to do, and where it cannot be switched on."""

import json

import msgspec
import pytest

from netgain.deciding.technique.blending import Blending
from netgain.deciding.technique.chunks_told import BlendingTold, ChunksSeen, blending_told
from netgain.errors import UsageError
from netgain.serving.tiers.blending.selection import PIECE_TOKENS
from tests.deciding.test_tiering_prediction import PREFIX, SUFFIX, facts

AT_A_QUARTER = BlendingTold(ratio=0.2, recomputed=0.25, source="calibrated", says="KL 0.01")


def test_a_switch_for_other_engines_is_refused_with_the_reason():
    """Case of LMCache's blending under vLLM: not in the mode that its current versions support."""
    for engine, reason in {"vllm": "multiprocess", "sglang": "prefixes", "llama.cpp": "prefixes"}.items():
        with pytest.raises(UsageError, match=reason):
            Blending().switch_on(engine, {"ratio": "calibrated"})
    flags = Blending().switch_on("netgain", {"ratio": "calibrated"}).flags
    assert "engine.blending.enabled=true" in flags


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"chunks": {}}, "workload documents"),
        ({"blending": BlendingTold()}, "netgain cache blend"),
        ({"blending": BlendingTold(ratio=1.0, source="calibrated", says="KL 0.2")}, r"saves nothing \(KL 0.2\)"),
        ({"step_cost": None, "step_cost_missing": "no time"}, "no time"),
        ({"engine": "sglang"}, "prefixes only"),
    ],
)
def test_where_it_cannot_be_tried_the_remedy_is_named(make_facts, changes, said):
    asked = msgspec.structs.replace(make_facts(), **changes)
    with pytest.raises(UsageError, match=said):
        Blending().predict(asked)


def test_what_is_saved_is_the_prefill_of_what_is_not_computed_anew_less_the_chunks_computed_first(make_facts):
    """A token costs the same wherever it stands, so the figures follow by hand."""
    asked = make_facts()
    predicted = Blending().predict(asked)
    assert predicted.setting == {"ratio": 0.2}
    took_s = sum(record.server.stages["prefill"] for record in asked.records) / len(asked.records)
    of_chunks_s = took_s * PREFIX / (PREFIX + SUFFIX)
    assert predicted.saved_s["prefill"] == pytest.approx(0.75 * of_chunks_s, rel=0.01)
    assert predicted.spent_s["prefill"] == pytest.approx(of_chunks_s / 3, rel=0.01)  # two of six are the first
    assert predicted.net_s == pytest.approx(predicted.saved_s["prefill"] - predicted.spent_s["prefill"])
    assert not predicted.off_is_better
    assert f"{6 * PREFIX:,} tokens in chunks" in predicted.basis


def test_chunks_that_never_come_again_are_predicted_not_to_pay(make_facts):
    assert Blending().predict(make_facts(again=False)).off_is_better


def test_what_others_wait_for_is_said_as_the_engine_computes_it(make_facts):
    pieces = f"{PIECE_TOKENS} tokens"
    assert pieces in Blending.brings
    assert any(pieces in one for one in Blending().predict(make_facts()).not_covered)


def test_what_a_server_tells_is_read_and_what_cannot_be_read_is_unknown():
    told = {"enabled": True, "ratio": 0.2, "recomputed": 0.25, "source": "set", "says": None}
    assert blending_told({"blending": json.dumps(told)}) == BlendingTold(**told)
    for text in ("", "yes", "[]"):
        assert blending_told({"blending": text}) == blending_told({}) == BlendingTold()


@pytest.fixture
def make_facts(make_record):
    """Prompts of one chunk and a question; of two chunks in turn, or of another each time."""

    def build(again=True):
        found = facts(make_record, cached=0)
        chunks = {
            record.item_id: ChunksSeen(
                texts=(str(number % 2 if again else number),), tokens=(PREFIX,), first=0, behind=PREFIX
            )
            for number, record in enumerate(found.records)
        }
        assert all(record.server.prompt_tokens == PREFIX + SUFFIX for record in found.records)
        return msgspec.structs.replace(found, blending=AT_A_QUARTER, chunks=chunks)

    return build

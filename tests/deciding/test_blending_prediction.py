"""What blending is predicted to do, and where it cannot be switched on."""

import msgspec
import pytest

from netgain.deciding.technique.blending import Blending
from netgain.errors import UsageError
from netgain.ledger.records import BlendCounts
from netgain.serving.tiers.blending.selection import PIECE_TOKENS


def test_a_switch_for_other_engines_is_refused_with_the_reason():
    """Case of LMCache's blending under vLLM: not in the mode that its current versions support."""
    for engine, reason in {"vllm": "multiprocess", "sglang": "prefixes", "llama.cpp": "prefixes"}.items():
        with pytest.raises(UsageError, match=reason):
            Blending().switch_on(engine, {"ratio": "calibrated"})
    flags = Blending().switch_on("netgain", {"ratio": "calibrated"}).flags
    assert "engine.blending.enabled=true" in flags


def test_without_marked_chunks_there_is_nothing_to_join(make_facts):
    assert "netgain.chunks" in Blending().cannot_apply(make_facts(0))


def test_the_prediction_is_the_chunks_share_of_the_prefill_as_an_upper_limit(make_facts):
    facts = make_facts(60)
    assert Blending().cannot_apply(facts) is None
    predicted = Blending().predict(facts)
    (one,) = facts.records
    prefill = one.server.stages["prefill"]
    assert predicted.net_s == pytest.approx(prefill * 60 / one.server.prompt_tokens)
    assert "upper limit" in predicted.basis
    assert predicted.setting == {"ratio": "calibrated"}


def test_what_others_wait_for_is_said_as_the_engine_computes_it(make_facts):
    pieces = f"{PIECE_TOKENS} tokens"
    assert pieces in Blending.brings
    assert any(pieces in one for one in Blending().predict(make_facts(60)).not_covered)


@pytest.fixture
def make_facts(make_record):
    from tests.deciding.test_tiering_prediction import facts

    def build(chunk_tokens):
        found = facts(make_record)
        one = found.records[0]
        counts = BlendCounts(
            selection="deviating 100%",
            lossy=False,
            chunks=2,
            chunk_tokens=chunk_tokens,
            recomputed_tokens=float(chunk_tokens),
            computed_alone_tokens=0,
        )
        server = msgspec.structs.replace(one.server, blending=counts if chunk_tokens else None)
        return msgspec.structs.replace(found, records=(msgspec.structs.replace(one, server=server),))

    return build

"""What drafting takes is in the gauges, and grows and shrinks with what is kept."""

from netgain.ledger.prometheus import GAUGES, Exporter
from netgain.serving.engine.protocols import Ask
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.draft_memory import DraftMemory
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.suffix import SuffixProposer


def sample(exporter: Exporter, name: str) -> float | None:
    return exporter.registry.get_sample_value(name, {"replica": "0"})


def test_weights_and_kv_are_told_per_token_and_in_all():
    exporter = Exporter()
    exporter.engine(DraftMemory(1_000_000, 256, 4_096).gauges())
    assert sample(exporter, "netgain_draft_weight_bytes") == 1_000_000
    assert sample(exporter, "netgain_draft_kv_token_bytes") == 256
    assert sample(exporter, "netgain_draft_kv_bytes") == 256 * 4_096
    assert sample(exporter, "netgain_suffix_index_bytes") is None, "there are none"


def test_suffix_indexes_are_told_as_they_grow_and_as_requests_end():
    proposer = SuffixProposer(4)
    memory = DraftMemory(0, 0, 4_096, proposer)
    exporter = Exporter()
    exporter.engine(memory.gauges())
    assert sample(exporter, "netgain_suffix_index_bytes") == 0
    request = Request(id="r", prompt=tuple(range(100)), sampling=SamplingParams(max_tokens=100))
    proposer.propose([Ask(request, list(range(200)), 4)])
    exporter.engine(memory.gauges())
    running = sample(exporter, "netgain_suffix_index_bytes")
    assert running == proposer.bytes > 200 * 8
    proposer.end(request, list(range(200)))
    exporter.engine(memory.gauges())
    assert 0 < sample(exporter, "netgain_suffix_index_bytes") < running, "of its answer only"
    exporter.engine_gone()
    assert sample(exporter, "netgain_suffix_index_bytes") is None


def test_other_drafts_from_text_have_no_suffix_indexes():
    gauges = DraftMemory(0, 0, 4_096, NgramProposer(4, 1, 3)).gauges()
    assert "suffix_index_bytes" not in gauges
    assert gauges.keys() <= GAUGES.keys()

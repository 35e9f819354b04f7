"""The suffix technique: predicted from recorded outputs, each of which serves the requests that arrived after it."""

import msgspec
import pytest

from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.technique.catalogue import CATALOGUE, technique
from netgain.deciding.technique.replayed import predict_by_replay
from netgain.deciding.technique.suffix import SuffixSpeculation
from netgain.errors import UsageError
from netgain.serving.speculation.replay import replay
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from tests.deciding.test_ngram_prediction import COPY, FRESH, facts

OTHERS = tuple(range(2000, 2034))
TEXT = {name: CATALOGUE[name] for name in ("ngram", "suffix")}


def arriving(found, arrivals, lasting=1.0):
    """The same requests, received at `arrivals` and finished `lasting` seconds later."""
    records = []
    for record, at in zip(found.records, arrivals, strict=True):
        server = msgspec.structs.replace(record.server, received_s=at, first_token_s=at, finished_s=at + lasting)
        records.append(msgspec.structs.replace(record, server=server))
    return msgspec.structs.replace(found, records=tuple(records))


def committed(found, k=8):
    settings = [({"k": k}, SuffixProposer(k, SuffixOptions()))]
    return predict_by_replay("suffix", found, settings).committed_per_step


def test_answers_that_recur_are_worth_more_to_suffix_than_to_ngram(make_record):
    found = arriving(facts(make_record, [FRESH] * 4), range(0, 40, 10))
    first, second, *_ = rank(TEXT, found)
    assert (first.technique, second.technique) == ("suffix", "ngram")
    assert not first.prediction.off_is_better
    assert second.prediction.off_is_better


def test_where_nothing_recurs_suffix_is_predicted_not_to_pay(make_record):
    found = arriving(facts(make_record, [FRESH, OTHERS]), (0, 10))
    assert SuffixSpeculation().predict(found).off_is_better


def test_copies_of_the_prompt_pay_for_both(make_record):
    for name in TEXT:
        assert not TEXT[name].predict(arriving(facts(make_record, [COPY] * 3), (0, 10, 20))).off_is_better


def test_the_prediction_is_the_replay_in_the_order_of_arrival(make_record):
    outputs = [FRESH, OTHERS, FRESH[:20] + OTHERS[:14], FRESH]
    found = facts(make_record, outputs)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        proposer = SuffixProposer(8, SuffixOptions())
        steps = tokens = 0
        for place in sorted(range(4), key=order.__getitem__):
            trace = replay(tuple(range(40)), outputs[place], proposer, len(outputs[place]) + 1)
            steps, tokens = steps + len(trace.steps), tokens + trace.committed
        assert committed(arriving(found, [10.0 * at for at in order])) == tokens / steps


def test_answers_serve_only_requests_that_arrived_after_they_ended(make_record):
    found = facts(make_record, [FRESH] * 3)
    apart, together = arriving(found, (0, 10, 20)), arriving(found, (0, 10, 20), lasting=100.0)
    assert committed(apart) > 2 * committed(together)
    assert committed(together) == committed(arriving(facts(make_record, [FRESH]), (0,)))


def test_netgain_and_vllm_have_switches_that_started_them():
    setting = {"k": 8, "factor": 2.0}
    switch = technique("suffix").switch_on("netgain", setting)
    assert switch.verified
    assert "engine.speculation.suffix.factor=2.0" in switch.flags
    other = technique("suffix").switch_on("vllm", setting)
    assert other.verified
    assert other.note == "switches checked with vllm 0.32.0 and arctic-inference 0.1.1, which they need"
    assert '"suffix_decoding_max_spec_factor": 2.0' in other.flags[1]
    for engine in ("llama.cpp", "sglang", "tgi"):
        with pytest.raises(UsageError, match="no switch"):
            technique("suffix").switch_on(engine, setting)


def test_synthetic_text_and_missing_costs_are_refused_by_their_reason(make_record):
    found = facts(make_record, [COPY], synthetic_text=True)
    assert "synthetic" in SuffixSpeculation().cannot_apply(found)
    assert "cost" in SuffixSpeculation().cannot_apply(facts(make_record, [COPY], step_cost=None))

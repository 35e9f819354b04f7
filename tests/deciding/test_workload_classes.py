"""The seven classes of workload: recognised from a figure, refused by one, or said to be unknown. They decide nothing."""

import msgspec
import pytest

from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.diagnose.workload_classes import workload_classes
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.ledger.stage import Stage
from tests.deciding.test_draft_prediction import DRAFTER
from tests.deciding.test_ngram_prediction import COPY, FRESH, facts

NAMES = (
    "gaps between tokens at low concurrency",
    "copying or structured output",
    "well-matched draft",
    "prefill or queue dominates",
    "compute already full",
    "very short output",
    "draft eats KV room",
)
POOL = {"kv_tokens": 1000, "kv_token_bytes": 23_040}


def classes(found) -> dict:
    predictions = {one.technique: one.prediction for one in rank(CATALOGUE, found)}
    return {one.workload: one for one in workload_classes(found, predictions)}


def spending(found, **stages):
    parts = msgspec.structs.replace(found.decomposition, ttft_stages={Stage(n): s for n, s in stages.items()})
    return msgspec.structs.replace(found, decomposition=parts)


def test_all_seven_are_told_in_one_order(make_record):
    assert tuple(classes(facts(make_record, [COPY]))) == NAMES


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        (NAMES[0], {}, {"concurrency": 8}),
        (NAMES[2], {"drafter": DRAFTER}, {"drafter": msgspec.structs.replace(DRAFTER, survival=(0.2,))}),
        (NAMES[4], {"marginal": 0.9}, {"marginal": 0.1}),
        (
            NAMES[6],
            {"drafter": msgspec.structs.replace(DRAFTER, token_bytes=500_000), **POOL},
            {"drafter": DRAFTER, **POOL},
        ),
    ],
)
def test_a_figure_recognises_the_class_and_another_does_not(make_record, name, yes, no):
    assert classes(facts(make_record, [FRESH] * 2, **yes))[name].holds is True
    assert classes(facts(make_record, [FRESH] * 2, **no))[name].holds is False


def test_copying_is_recognised_from_replayed_drafts_of_either_lookup(make_record):
    found = classes(facts(make_record, [COPY] * 3))[NAMES[1]]
    assert found.holds
    assert "replayed ngram drafts" in found.evidence
    assert "suffix" in found.evidence
    assert classes(facts(make_record, [FRESH]))[NAMES[1]].holds is False
    assert classes(facts(make_record, [COPY], step_cost=None))[NAMES[1]].holds is None


def test_answers_that_recur_are_recognised_as_copying_though_ngram_finds_nothing(make_record):
    found = facts(make_record, [FRESH] * 4)
    records = [
        msgspec.structs.replace(
            one,
            server=msgspec.structs.replace(
                one.server, received_s=10.0 * at, first_token_s=10.0 * at, finished_s=10.0 * at + 1.0
            ),
        )
        for at, one in enumerate(found.records)
    ]
    told = classes(msgspec.structs.replace(found, records=tuple(records)))[NAMES[1]]
    assert told.holds is True
    assert told.attitude == "suffix or n-gram first"


def test_waiting_and_short_answers_are_recognised(make_record):
    found = facts(make_record, [FRESH])
    assert classes(spending(found, queued=50.0))[NAMES[3]].holds is True
    assert classes(found)[NAMES[3]].holds is False
    assert classes(facts(make_record, [FRESH[:8]]))[NAMES[5]].holds is True
    assert classes(found)[NAMES[5]].holds is False


def test_preempted_requests_have_no_room_for_any_draft(make_record):
    told = classes(spending(facts(make_record, [FRESH]), preempted=1.0))[NAMES[6]]
    assert told.holds is True
    assert "preempted" in told.evidence


def test_what_was_not_measured_is_unknown_with_what_is_missing(make_record):
    unknown = classes(facts(make_record, [FRESH], step_cost=None, step_cost_missing="the server was busy"))
    assert unknown[NAMES[4]].holds is None
    assert "the server was busy" in unknown[NAMES[4]].evidence
    assert unknown[NAMES[2]].holds is None
    assert "--draft" in unknown[NAMES[2]].evidence
    told = classes(facts(make_record, [FRESH], drafter=DRAFTER))[NAMES[6]]
    assert told.holds is None
    assert "not known" in told.evidence


def test_only_what_holds_is_a_hint_and_only_of_speculation(make_record):
    for one in rank(CATALOGUE, facts(make_record, [COPY], kv_dtype="bfloat16", drafter=DRAFTER)):
        assert all(hint.holds for hint in one.hints)
        assert bool(one.hints) == (not one.technique.startswith("kv-"))

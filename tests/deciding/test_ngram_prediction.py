"""The n-gram technique: predicted from recorded outputs and a measured step cost, without running anything."""

import msgspec
import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.technique.catalogue import CATALOGUE, technique
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.ngram import NgramSpeculation
from netgain.deciding.technique.replayed import relative_cost
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

NGRAM = {"ngram": CATALOGUE["ngram"]}


def curve(marginal: float, batches=(1, 4), widest=17) -> StepCost:
    """A step of n tokens per sequence costs 1 + marginal (n - 1) of one of a single token."""
    return StepCost(
        points=tuple(
            StepPoint(batch=batch, tokens=n, context=context, seconds=0.01 * (1 + marginal * (n - 1)))
            for batch in batches
            for n in (1, widest)
            for context in (0, 4096)
        )
    )


def facts(make_record, outputs, marginal=0.05, concurrency=1, prompt=tuple(range(40)), **changes):
    records = []
    for index, output in enumerate(outputs):
        record = make_record(f"p{index}", tokens=len(output), output=output)
        records.append(
            msgspec.structs.replace(record, server=msgspec.structs.replace(record.server, prompt_ids=prompt))
        )
    return msgspec.structs.replace(
        Facts(
            engine="netgain",
            engine_version="0",
            model="m",
            workload="w",
            concurrency=concurrency,
            decomposition=decompose(records),
            records=tuple(records),
            step_cost=curve(marginal),
        ),
        **changes,
    )


COPY = (*range(5, 38), 900)  # copies the prompt, then ends
FRESH = tuple(range(1000, 1034))  # says nothing that was said before


def test_copying_is_predicted_to_pay_and_by_how_much(make_record):
    prediction = NgramSpeculation().predict(facts(make_record, [COPY] * 4, marginal=0.0))
    assert not prediction.off_is_better
    assert prediction.speedup_tpot > 3.0
    # A step as dear as any other: decode falls by the tokens committed per step.
    assert prediction.speedup_tpot == pytest.approx(prediction.committed_per_step, rel=0.01)
    assert prediction.speedup_e2e < prediction.speedup_tpot
    assert prediction.net_s == pytest.approx(sum(prediction.saved_s.values()) - sum(prediction.spent_s.values()))


def test_the_mean_prediction_is_total_over_total(make_record):
    known = facts(make_record, [COPY, FRESH])
    prediction = NgramSpeculation().predict(known)
    whole = sum(record.e2e_s for record in known.records) / 2
    assert prediction.speedup_mean == pytest.approx(whole / (whole - prediction.net_s))


def test_drafting_is_not_judged_on_synthetic_text(make_record):
    """What copies on made-up prompts says nothing about what the recorded ones would have copied."""
    (only,) = rank(NGRAM, facts(make_record, [COPY] * 4, synthetic_text=True))
    assert only.prediction is None
    assert "cannot be judged on synthetic text" in only.cannot_apply


def test_text_that_never_repeats_gains_nothing(make_record):
    prediction = NgramSpeculation().predict(facts(make_record, [FRESH] * 3))
    assert prediction.off_is_better
    assert prediction.committed_per_step == 1.0
    assert prediction.speedup_e2e == pytest.approx(1.0, abs=0.01)


def test_a_step_as_dear_as_its_tokens_makes_drafts_worthless(make_record):
    prediction = NgramSpeculation().predict(facts(make_record, [COPY, FRESH], marginal=1.0))
    assert prediction.off_is_better
    assert prediction.net_s <= 0.0


def test_dearer_steps_choose_shorter_drafts(make_record):
    output = (*range(5, 9), 900, *range(12, 16), 901, *range(20, 24), 902, *range(26, 30), 903)
    cheap = NgramSpeculation().predict(facts(make_record, [output] * 2, marginal=0.001))
    dear = NgramSpeculation().predict(facts(make_record, [output] * 2, marginal=0.3))
    assert dear.setting["k"] <= cheap.setting["k"]
    assert dear.net_s < cheap.net_s


def test_settings_wider_than_measured_are_not_considered(make_record):
    known = facts(make_record, [COPY], step_cost=curve(0.01, widest=5))
    assert max(considered.setting["k"] for considered in NgramSpeculation().predict(known).considered) == 4


def test_neighbours_in_the_batch_are_charged_their_mean_width(make_record):
    prediction = NgramSpeculation().predict(facts(make_record, [COPY, FRESH], concurrency=4))
    assert any("mean width" in caveat for caveat in prediction.not_covered)


def test_it_says_why_it_cannot_apply(make_record):
    ngram = NgramSpeculation()
    assert "engine is busy" in ngram.cannot_apply(
        facts(make_record, [COPY], step_cost=None, step_cost_missing="engine is busy")
    )
    assert "token ids" in ngram.cannot_apply(facts(make_record, [COPY], records=()))
    single = StepCost(points=(StepPoint(batch=1, tokens=1, context=0, seconds=0.01),))
    assert "one token only" in ngram.cannot_apply(facts(make_record, [COPY], step_cost=single))
    assert ngram.cannot_apply(facts(make_record, [COPY])) is None


def test_relative_cost_lies_between_whole_numbers_in_proportion():
    cost = curve(0.5)
    assert relative_cost(cost, 1, 3.0, 10) == pytest.approx(2.0)
    assert relative_cost(cost, 1, 3.5, 10) == pytest.approx(2.25)


def test_ranking_puts_what_cannot_apply_last_and_recognises_copying(make_record):
    found = rank(CATALOGUE, facts(make_record, [COPY] * 3))
    assert found[0].prediction is not None
    assert {hint.workload for hint in found[0].hints} >= {"copying or structured output"}
    blind = rank(CATALOGUE, facts(make_record, [COPY], step_cost=None))
    assert blind[-1].prediction is None
    assert blind[-1].cannot_apply


def test_prefill_heavy_and_short_outputs_are_recognised(make_record):
    record = make_record(prefill_s=2.0, tokens=4, output=(1, 2, 3, 4))
    known = Facts(
        engine="netgain",
        engine_version="0",
        model="m",
        workload="w",
        concurrency=1,
        decomposition=decompose([record]),
        records=(record,),
    )
    hints = {hint.workload for hint in rank(NGRAM, known)[0].hints}
    assert {"prefill or queue dominates", "very short output"} <= hints


def test_switches_name_every_part_of_the_setting_and_the_version(make_record):
    switch = NgramSpeculation().switch_on("netgain", {"k": 5, "lookup_min": 2, "lookup_max": 4})
    assert switch.flags[:2] == ("--speculation", "ngram")
    assert {"engine.speculation.k=5", "engine.speculation.lookup_min=2"} <= set(switch.flags)
    assert switch.verified
    with pytest.raises(UsageError, match="tensorrt"):
        NgramSpeculation().switch_on("tensorrt-llm", {"k": 5, "lookup_min": 2, "lookup_max": 4})


def test_an_unknown_technique_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="ngram"):
        technique("ngrams")


def test_decode_is_split_from_the_first_token(make_record):
    parts = decompose([make_record(prefill_s=0.1, token_s=0.01, tokens=11), make_record(error="cut")])
    assert (parts.requests, parts.dropped) == (1, 1)
    assert parts.ttft_stages == {Stage.PREFILL: pytest.approx(0.1)}
    assert parts.decode_stages == {Stage.DECODE: pytest.approx(0.1)}
    assert sum(parts.client_s.values()) == pytest.approx(parts.e2e_s)
    with pytest.raises(UsageError, match="cut"):
        decompose([make_record(error="cut")])

"""What the int8 KV technique predicts, where it cannot apply, and that its quality decides whatever its speed."""

import msgspec
import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.decide.candidates import nothing_to_try, without_lossy
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kv_int8 import KvInt8, reading_share
from netgain.errors import UsageError


def curve(per_token_s: float, base_s: float = 0.010) -> StepCost:
    points = [
        StepPoint(
            batch=1,
            tokens=1,
            context=context,
            seconds=base_s + per_token_s * context,
            low_s=None,
            high_s=None,
            repeats=5,
        )
        for context in (16, 512, 4096)
    ]
    return StepCost(points=tuple(points), subject={}, unmeasured=(), measured_at="2026-01-01T00:00:00+00:00")


ONE_CONTEXT = StepCost(points=tuple(StepPoint(batch=1, tokens=1, context=at, seconds=0.01) for at in (128, 130)))


def facts(make_record, cost: StepCost | None, kv: str | None = "bfloat16") -> Facts:
    records = tuple(make_record(f"p{n}", tokens=101, token_s=0.02) for n in range(3))
    return Facts(
        engine="netgain",
        engine_version="0.1.0",
        model="m",
        workload="w",
        concurrency=1,
        decomposition=decompose(records),
        records=records,
        step_cost=cost,
        step_cost_missing=None if cost is not None else "asked too early",
        kv_dtype=kv,
    )


def test_a_step_that_costs_the_same_at_any_context_gains_nothing(make_record) -> None:
    found = KvInt8().predict(facts(make_record, curve(0.0)))
    assert found.off_is_better
    assert found.speedup_e2e == 1.0
    assert found.net_s == 0.0


def test_at_most_the_bytes_saved_of_what_context_costs_is_predicted(make_record) -> None:
    asked = facts(make_record, curve(1e-4))
    server = asked.records[0].server
    assert server is not None
    context = server.prompt_tokens + server.output_tokens // 2
    share = reading_share(curve(1e-4), 1, context)
    assert share == pytest.approx(1e-4 * context / (0.010 + 1e-4 * context))
    found = KvInt8().predict(asked)
    assert found.net_s == pytest.approx(0.5 * share * 100 * 0.02)
    assert not found.off_is_better
    from_fp32 = KvInt8().predict(msgspec.structs.replace(asked, kv_dtype="float32"))
    assert from_fp32.net_s == pytest.approx(1.5 * found.net_s)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_dtype": "int8"}, "in int8 already"),
        ({"kv_dtype": None}, "does not tell"),
        ({"engine": "vllm", "kv_dtype": "fp8"}, "in fp8 already"),
        ({"engine": "vllm", "kv_dtype": None}, "neither vllm:cache_config_info on its /metrics nor its configuration"),
        ({"engine": "vllm", "step_cost": ONE_CONTEXT}, "when the technique is named (--technique kv-int8)"),
        ({"step_cost": ONE_CONTEXT}, "at one context only, so what reading KV costs is not known"),
        ({"engine": "sglang", "kv_dtype": None}, "no switch for sglang here; known: netgain, vllm"),
        ({"step_cost": None, "step_cost_missing": "asked too early"}, "asked too early"),
    ],
)
def test_where_it_cannot_apply_it_says_why(make_record, change, said) -> None:
    asked = msgspec.structs.replace(facts(make_record, curve(1e-4)), **change)
    assert said in str(KvInt8().cannot_apply(asked))


def test_of_a_vllm_whose_kv_is_known_it_is_predicted(make_record) -> None:
    asked = msgspec.structs.replace(facts(make_record, curve(1e-4)), engine="vllm")
    assert KvInt8().cannot_apply(asked) is None
    assert KvInt8().predict(asked).speedup_e2e > 1.0


def test_both_of_its_switches_started_their_engines() -> None:
    assert KvInt8().switch_on("netgain", {"kv_dtype": "int8"}).verified
    assert KvInt8().switch_on("vllm", {"kv_dtype": "int8"}).verified
    with pytest.raises(UsageError, match="sglang"):
        KvInt8().switch_on("sglang", {"kv_dtype": "int8"})


def test_a_lossy_technique_is_listed_with_its_prediction_but_only_tried_when_named(make_record) -> None:
    found = rank(CATALOGUE, facts(make_record, curve(1e-4)))
    assert {one.technique for one in found} == set(CATALOGUE)
    own = next(one for one in found if one.technique == "kv-int8")
    assert own.prediction is not None
    assert own.hints == ()  # those speak of speculation
    assert "kv-int8" not in without_lossy(CATALOGUE)
    assert "kv-int8: it is lossy, so it is only tried when named" in nothing_to_try([own])


@pytest.mark.parametrize(
    ("terms", "decision"),
    [
        (Terms(promises_identity=False), "adopt"),
        (Terms(promises_identity=False, doubts=("not enough evidence of quality: 50 tasks",)), "inconclusive"),
        (Terms(promises_identity=False, losses=("quality is lost: perplexity +9%",)), "reject"),
    ],
)
def test_speed_without_shown_quality_is_not_adopted_and_lost_quality_is_rejected(make_trial, terms, decision) -> None:
    """The same trial of a candidate that is a fifth faster."""
    verdict = analyse(make_trial(speedup=1.2, outputs=lambda arm, prompt: (prompt, len(arm))), terms).verdict
    assert verdict.decision == decision
    assert not terms.losses or verdict.reasons[0] == terms.losses[0]
    assert not terms.doubts or terms.doubts[0] in verdict.reasons

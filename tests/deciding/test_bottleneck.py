"""The bottleneck statement: named only when it dominates, and always with what does not follow from it."""

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.diagnose.bottleneck import find_bottleneck
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.technique.facts import Facts


def facts(records, cost=None):
    return Facts(
        engine="netgain",
        engine_version="0",
        model="m",
        workload="w",
        concurrency=1,
        decomposition=decompose(records),
        records=tuple(records),
        step_cost=cost,
    )


def test_long_decode_is_named_but_its_cause_is_not(make_record):
    found = find_bottleneck(facts([make_record(prefill_s=0.05, token_s=0.02, tokens=64)]))
    assert found.place == "decode steps"
    assert found.share > 0.9
    refused = " ".join(found.cannot_conclude)
    assert "so speculate" in refused
    assert "utilisation" in refused
    assert "no step-cost curve" in refused


def test_without_a_dominant_place_none_is_named(make_record):
    found = find_bottleneck(facts([make_record(prefill_s=0.1, token_s=0.005, tokens=11, gap_s=0.1)]))
    assert found.place is None
    assert "no bottleneck is named" in found.statement


def test_a_flat_step_cost_is_told_as_shared_cost_and_a_steep_one_as_proportional(make_record):
    def cost(two):
        points = [(1, 0.01), (2, 0.01 * two), (4, 0.01 * two * 2)]
        return StepCost(
            points=tuple(
                StepPoint(batch=1, tokens=tokens, context=context, seconds=seconds)
                for tokens, seconds in points
                for context in (0, 1000)
            )
        )

    flat = find_bottleneck(facts([make_record()], cost(1.05)))
    steep = find_bottleneck(facts([make_record()], cost(1.95)))
    assert any("1.05 times" in line and "paid once" in line for line in flat.evidence)
    assert any("1.95 times" in line and "proportion" in line for line in steep.evidence)
    assert any("hardware counter" in line for line in flat.cannot_conclude)


def test_first_token_time_is_separated_before_it_is_explained(make_record):
    found = find_bottleneck(facts([make_record(prefill_s=2.0, token_s=0.001, tokens=4)]))
    assert found.place == "prefill"
    assert any("from a cache" in line and "prefill" in line for line in found.evidence)
    assert any("so prefill compute is the problem" in line for line in found.cannot_conclude)

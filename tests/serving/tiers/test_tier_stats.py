"""One direction of a tier: what went through it, and how slow its slow exchanges are."""

from netgain.ledger import kv_metrics
from netgain.serving.engine.tier_report import COUNTED
from netgain.serving.tiers.tier_stats import Direction


def test_percentiles_are_of_the_last_exchanges():
    direction = Direction()
    for _ in range(1000):
        direction.add(1, 10, 9.0)
    for number in range(512):
        direction.add(1, 10, (number + 1) / 512)
    flow = direction.flow()
    assert (flow.objects, flow.bytes) == (1512, 15120)
    assert flow.p95_s == 487 / 512
    assert flow.p99_s == 507 / 512


def test_without_an_exchange_they_are_unknown():
    flow = Direction().flow()
    assert flow.p95_s is None
    assert flow.p99_s is None
    assert flow.link is None


def test_every_counter_of_loads_is_a_metric_and_begins_at_0():
    assert {*COUNTED, "kv_stores_dropped"} == set(kv_metrics.COUNTERS)

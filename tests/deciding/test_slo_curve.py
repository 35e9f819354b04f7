"""The share of requests that meet an SLO as it is made tighter or looser."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.slo import slo_outcome
from netgain.deciding.experiment.slo_curve import slo_curve
from netgain.measuring.workload.slo import parse_slo
from tests.deciding.conftest import build_record

SLO = parse_slo("ttft=150ms,itl.p90=12ms,e2e=400ms")


def seen_of(*prefills_s: float, arm: str = BASELINE, **record) -> list[Observation]:
    return [
        Observation(arm=arm, group=0, block=0, record=build_record(f"p{place}", prefill_s=prefill_s, **record))
        for place, prefill_s in enumerate(prefills_s)
    ]


def test_each_request_joins_at_the_scale_at_which_its_worst_limit_is_met():
    seen = [*seen_of(0.06, 0.14, 0.29), *seen_of(0.06, arm=CANDIDATE)]
    found = slo_curve(seen, parse_slo("ttft=150ms"))
    shares = dict(zip(found.scales, found.baseline, strict=True))
    assert [shares[scale] for scale in (0.25, 0.5, 1.0, 2.0, 4.0)] == [0.0, 1 / 3, 2 / 3, 1.0, 1.0]
    assert found.candidate[found.scales.index(0.5)] == 1.0


@given(st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0.002, 0.05), st.integers(1, 30), st.booleans()), max_size=8))
def test_it_never_falls_with_looser_limits_and_is_the_slo_itself_at_one(requests):
    seen = [
        one
        for prefill_s, token_s, tokens, fails in requests
        for one in seen_of(prefill_s, token_s=token_s, tokens=tokens, error="cut" if fails else None)
    ]
    found = slo_curve(seen, SLO)
    itself = slo_outcome(seen, SLO).baseline
    assert found.baseline[found.scales.index(1.0)] == (None if itself is None else itself.share)
    if requests:
        assert all(before <= after for before, after in itertools.pairwise(found.baseline))
    assert set(found.candidate) == {None}, "nobody asked it"


def test_failures_meet_no_limit_however_loose():
    found = slo_curve(seen_of(0.1, error="cut"), SLO)
    assert set(found.baseline) == {0.0}

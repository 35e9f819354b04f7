"""What a side of a step did: hits in requests and in tokens, what was decided and how wrong that was, what loads took."""

import pytest

from netgain.deciding.kv.figures import decisions, hits, loads, overhead, role_figures, tiers
from netgain.deciding.kv.steps import STEPS
from netgain.ledger.records import KVReuse
from tests.deciding.kv.conftest import PROMPT, reuse


@pytest.fixture
def served(seen):
    def build(*pairs):
        return [
            seen("mixed", "dram", group, 0.1, cached=cached, kv=kv).record.server
            for group, (cached, kv) in enumerate(pairs)
        ]

    return build


def test_hits_are_counted_in_requests_and_in_tokens_and_what_came_from_beyond_the_device_apart(served):
    found = hits(served((0, None), (16, None), (384, reuse()), (0, reuse(loaded_tokens=0))))
    assert (found.requests, found.requests_hit, found.requests_hit_beyond) == (4, 2, 1)
    assert (found.found_tokens, found.loaded_tokens, found.computed_tokens) == (400, 384, 4 * PROMPT - 400)
    assert found.request_rate == 0.5
    assert found.token_rate == 400 / (4 * PROMPT)
    assert found.lengths == ((0, 2), (16, 1), (512, 1))


def test_without_a_record_that_tells_there_is_no_rate():
    found = hits([])
    assert found.request_rate is None
    assert found.token_rate is None


def test_the_error_of_predictions_counts_only_where_something_was_predicted(served):
    told = decisions(
        served(
            (384, reuse(actual_s=0.022)),
            (384, reuse(actual_s=0.018)),
            (384, reuse(actual_s=0.030)),
            (384, reuse(why="always", actual_s=0.9)),
            (0, reuse(why="compute", chosen_tokens=0, loaded_tokens=0, warm_s=None)),
            (0, KVReuse(why="nothing_found")),
        )
    )
    assert told.predicted == 3
    assert told.error == pytest.approx(0.1)
    assert told.worst_error == pytest.approx(0.5)
    assert told.bias == pytest.approx(0.1)
    assert (told.loads, told.recomputes) == (4, 1)
    assert told.why["load"] == 3


def test_loads_are_told_with_their_slow_ones_and_what_was_fetched_for_nothing(served, window):
    told = loads(served(*((384, reuse(waited_s=0.01 * (n + 1))) for n in range(4))), [window])
    assert told.requests == 4
    assert told.bytes_per_s == pytest.approx(4 * 8e6 / 0.1)
    assert told.slow_bytes_per_s == pytest.approx(8e6 / 0.04)
    assert told.waited_p95_s == pytest.approx(0.04)
    assert told.prefetched_used == 0.75
    assert told.overlapped == 0.0
    assert loads(served((384, reuse(overlapped_tokens=96))), []).overlapped == 0.25
    assert (told.cut, told.failed) == (0, None), "None: the server has no such counter"
    assert loads(served((384, reuse())), []).failed is None, "nothing is known"


def test_tiers_are_read_from_the_counters_and_what_is_not_there_stays_unknown(window):
    (tier,) = tiers([window, window])
    assert (tier.tier, tier.hits, tier.misses) == ("dram", 100, 4)
    assert tier.reading.bytes_per_s == 2e9
    assert tier.reading.p95_s == 0.02
    assert tier.writing.bytes_per_s is None
    assert tier.evicted is None


def test_overhead_is_told_per_request_and_nothing_serialised_is_no_time(served, window):
    told = overhead(served((384, reuse(lookup_s=0.002)), (0, KVReuse(lookup_s=0.004))), [window])
    assert told.lookup_s == pytest.approx(0.003)
    assert told.store_s is None
    assert told.serialise_s is None


def test_a_side_without_an_answer_has_no_times(seen):
    role = STEPS[1].roles[0]
    told = role_figures(role, [seen("cold", "off", 0, 0.1, error="refused")], ())
    assert (told.requests, told.failed) == (1, 1)
    assert told.ttft_mean_s is None
    assert told.ttft_p95_s is None
    assert told.decisions is None, "the server has no tier"

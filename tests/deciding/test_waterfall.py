"""The waterfall adds up to the nanosecond, whatever the stages hold."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.waterfall import waterfall, waterfall_by_metrics
from netgain.ledger.stage import Stage
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.stages import StageSum, stage_sums, summed
from netgain.measuring.observe.window import observed

SECONDS = st.floats(0.0, 10.0, allow_nan=False)
STAGES = st.dictionaries(st.sampled_from(list(Stage)), SECONDS, min_size=1)


@given(st.lists(st.tuples(STAGES, SECONDS, STAGES, SECONDS), min_size=1, max_size=5))
def test_saved_plus_residual_is_the_net_exactly(make_record, rows):
    observations = []
    for index, (before, before_s, after, after_s) in enumerate(rows):
        for arm, stages, seconds in ((BASELINE, before, before_s), (CANDIDATE, after, after_s)):
            record = make_record(f"p{index}")
            server = msgspec.structs.replace(record.server, stages=stages)
            record = msgspec.structs.replace(record, server=server, finished_s=record.scheduled_s + seconds)
            observations.append(Observation(arm=arm, group=0, block=0, record=record))
    found = waterfall(observations)
    assert found.net_ns == sum(found.saved_ns.values()) + found.residual_ns
    assert found.requests == len(rows)
    again = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
    assert again.net_ns == sum(again.saved_ns.values()) + again.residual_ns


def test_speculation_saves_decode_and_spends_verify_and_draft(make_record):
    observations = [
        Observation(arm=BASELINE, group=0, block=0, record=make_record(tokens=21, token_s=0.01)),
        Observation(
            arm=CANDIDATE,
            group=0,
            block=1,
            record=make_record(tokens=21, token_s=0.004, verify=True, per_chunk=4, draft_s=0.002, gap_s=0.004),
        ),
    ]
    found = waterfall(observations)
    assert found.saved_ns[Stage.DECODE] == 200_000_000
    assert found.saved_ns[Stage.VERIFY] == -80_000_000
    assert found.saved_ns[Stage.DRAFT] == -2_000_000
    assert abs(found.residual_ns - -3_000_000) < 1000


def test_a_prompt_that_failed_in_one_arm_is_left_out_of_both(make_record):
    observations = [
        Observation(arm=BASELINE, group=0, block=0, record=make_record("a")),
        Observation(arm=CANDIDATE, group=0, block=1, record=make_record("a", error="cut")),
        Observation(arm=BASELINE, group=0, block=0, record=make_record("b", token_s=0.02)),
        Observation(arm=CANDIDATE, group=0, block=1, record=make_record("b", token_s=0.02)),
    ]
    found = waterfall(observations)
    assert found.requests == 1
    assert found.saved_ns[Stage.DECODE] == 0


def test_without_a_server_record_there_is_no_waterfall(make_record):
    bare = msgspec.structs.replace(make_record(), server=None)
    observations = [Observation(arm=arm, group=0, block=0, record=bare) for arm in (BASELINE, CANDIDATE)]
    assert waterfall(observations) is None


def test_by_metrics_only_what_both_tell_is_compared_and_the_rest_is_the_residual(make_record):
    seen = [
        Observation(arm=BASELINE, group=0, block=0, record=make_record(tokens=21, token_s=0.01)),
        Observation(arm=CANDIDATE, group=0, block=1, record=make_record(tokens=21, token_s=0.006)),
        Observation(arm=CANDIDATE, group=0, block=1, record=make_record("b", error="cut")),
    ]
    stages = {
        BASELINE: {Stage.DECODE: StageSum(0.4, 2), Stage.QUEUED: StageSum(0.1, 2)},
        CANDIDATE: {Stage.DECODE: StageSum(0.12, None)},
    }
    found = waterfall_by_metrics(seen, stages)
    assert found.by == "metrics"
    assert found.saved_ns == {Stage.DECODE: 80_000_000}, "200 ms a request against 120 ms of the one that succeeded"
    assert found.net_ns == sum(found.saved_ns.values()) + found.residual_ns
    assert waterfall_by_metrics(seen, {BASELINE: stages[BASELINE], CANDIDATE: {}}) is None
    assert waterfall_by_metrics(seen[:1], stages) is None


def test_a_stage_that_a_start_did_not_tell_is_not_summed():
    first = {Stage.DECODE: StageSum(1.0, 4), Stage.QUEUED: StageSum(0.1, 4)}
    second = {Stage.DECODE: StageSum(3.0, 4)}
    assert summed([first, second]) == {Stage.DECODE: StageSum(4.0, 8)}
    assert summed([first, {}]) == summed([]) == {}


def test_llama_cpp_tells_seconds_and_no_requests():
    """Names as llama.cpp's server writes them (tools/server, 0.5.0-dev)."""
    text = """# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total {0}
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total {1}
"""
    snapshots = [read_exposition(text.format(*values), at) for at, values in ((0.0, (1.0, 2.0)), (9.0, (1.5, 4.0)))]
    assert stage_sums(observed(snapshots), "llama.cpp") == {
        Stage.PREFILL: StageSum(0.5, None),
        Stage.DECODE: StageSum(2.0, None),
    }
    assert stage_sums(None, "llama.cpp") == {}

"""Handoffs over a window: by kind, over all replicas, and unknown where a server does not tell them."""

from netgain.deciding.verdict.document import HandoffCost
from netgain.ledger.prometheus import HANDOFF_COUNTERS
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.handoffs import FIGURES, Handoffs, handoffs, together
from netgain.measuring.observe.window import observed

BEFORE = """# TYPE netgain_handoffs_total counter
netgain_handoffs_total{kind="kv_tier",replica="0"} 2
# TYPE netgain_handoff_bytes_total counter
netgain_handoff_bytes_total{kind="kv_tier",replica="0"} 100
"""
AFTER = """# TYPE netgain_handoffs_total counter
netgain_handoffs_total{kind="kv_tier",replica="0"} 5
netgain_handoffs_total{kind="draft_verify",replica="0"} 7
netgain_handoffs_total{kind="draft_verify",replica="1"} 1
# TYPE netgain_handoff_bytes_total counter
netgain_handoff_bytes_total{kind="kv_tier",replica="0"} 250
# TYPE netgain_handoff_wasted_tokens_total counter
netgain_handoff_wasted_tokens_total{kind="draft_verify",replica="0"} 4
"""


def window(*texts):
    return observed([read_exposition(text, float(place)) for place, text in enumerate(texts)])


def test_what_happened_within_the_window_by_kind_over_all_replicas():
    found = handoffs(window(BEFORE, AFTER), "netgain")
    assert found.unknown is None
    assert found.kinds == {
        "draft_verify": {"handoffs": 8, "wasted_tokens": 4},
        "kv_tier": {"handoffs": 3, "bytes": 150},
    }


def test_none_that_happened_is_not_the_same_as_unknown():
    assert handoffs(window(BEFORE, BEFORE), "netgain") == Handoffs(kinds={})
    assert handoffs(
        window("# TYPE vllm:x counter\nvllm:x 1\n", "# TYPE vllm:x counter\nvllm:x 2\n"), "vllm"
    ) == Handoffs(unknown="vllm tells no handoffs but of drafts, and counted none")
    assert handoffs(window("", ""), None).unknown == "this engine tells no handoffs"
    assert "could not be read" in (handoffs(None, "netgain").unknown or "")
    assert together(()).unknown is not None


def test_counters_that_begin_again_leave_nothing_known():
    again = AFTER.replace("} 5", "} 1")
    assert "began again" in (handoffs(window(BEFORE, again), "netgain").unknown or "")


def test_several_windows_add_up_and_one_that_is_unknown_leaves_no_sum():
    one = handoffs(window(BEFORE, AFTER), "netgain")
    two = together((one, one))
    assert two.kinds["draft_verify"] == {"handoffs": 16, "wasted_tokens": 8}
    assert together((one, Handoffs(kinds={}))) == one
    assert together((one, Handoffs(unknown="why"))) == Handoffs(unknown="why")


def test_every_counter_that_netgain_has_of_handoffs_is_read_and_has_its_place_in_a_verdict():
    assert set(FIGURES) == {f"{metric}_total" for metric, _ in HANDOFF_COUNTERS.values()}
    assert set(HandoffCost.__struct_fields__) == {"arm", "kind", *FIGURES.values()}


def test_counters_of_drafts_are_handoffs_of_vllm_and_llama_cpp_with_what_they_do_not_tell_left_out():
    """Names as vLLM 0.32.0 and llama.cpp's server write them."""
    for prefix, engine in (("vllm:", "vllm"), ("llamacpp:", "llama.cpp")):
        named = [f"{prefix}spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")]
        texts = (
            "".join(f"# TYPE {name} counter\n{name} {value}\n" for name, value in zip(named, values, strict=True))
            for values in ((1, 4, 2), (11, 44, 32))
        )
        found = handoffs(window(*texts), engine)
        assert found == Handoffs(kinds={"draft_verify": {"handoffs": 10, "used_tokens": 30, "wasted_tokens": 10}})
        (cost,) = (HandoffCost(arm="candidate", kind=kind, **figures) for kind, figures in found.kinds.items())
        assert cost.waited_s is None
    assert "counted none" in str(handoffs(None, "vllm").unknown)

"""A server's metrics over a window: only what happened in it, and nothing where nothing can be known."""

import math
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.observe.exposition import Snapshot, of_model, read_exposition
from netgain.measuring.observe.names import engine_of, figures
from netgain.measuring.observe.window import ServerWindow, observed

SAMPLES = Path(__file__).parent / "samples"


def text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def window(*texts: str) -> ServerWindow:
    found = observed([read_exposition(each, float(place)) for place, each in enumerate(texts)])
    assert found is not None
    return found


def counter(value: float, started_s: float | None = None) -> str:
    start = (
        ()
        if started_s is None
        else ("# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_s}")
    )
    return text("# TYPE asked_total counter", f'asked_total{{path="/v1"}} {value}', *start)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=6))
def test_counters_are_what_they_gained_and_a_fall_is_a_restart(values: list[float]) -> None:
    seen = window(*map(counter, values))
    rising = all(earlier <= later for earlier, later in pairwise(values))
    gained = seen.gained("asked_total")
    assert gained == (pytest.approx(values[-1] - values[0]) if rising else None)
    assert bool(seen.restarts) is not rising


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e400"])
def test_a_counter_that_is_no_number_is_unknown_and_no_restart(value: str) -> None:
    told = text("# TYPE vllm:generation_tokens_total counter", f"vllm:generation_tokens_total {value}")
    seen = window(told, told)
    assert seen.restarts == ()
    assert seen.gained("vllm:generation_tokens_total") is None
    assert figures(seen, "vllm")["output_tokens"].problem == "it was no number"


def test_a_counter_that_is_no_number_for_a_while_gained_what_its_ends_say_unless_it_fell() -> None:
    told = [text("# TYPE asked_total counter", f"asked_total {value}") for value in ("3", "NaN", "8", "2")]
    assert window(*told[:3]).gained("asked_total") == 5.0
    fallen = window(*told)
    assert fallen.gained("asked_total") is None
    assert fallen.restarts


def test_a_histogram_that_is_no_number_is_no_restart() -> None:
    told = text("# TYPE h histogram", 'h_bucket{le="+Inf"} NaN', "h_sum 1", "h_count NaN")
    seen = window(told, told).histograms["h"]
    assert seen.count is None
    assert seen.problem == "its count is no number"


def test_a_page_is_read_in_time_that_grows_with_its_lines() -> None:
    def cpu_s(lines: int) -> float:
        page = "".join(f'vllm:x{{a="{place}"}} 1\n' for place in range(lines))  # no heading: a family for each line
        spent = []
        for _ in range(3):
            began = time.thread_time()
            assert len(read_exposition(page, 0.0).families["vllm:x"].samples) == lines
            spent.append(time.thread_time() - began)
        return min(spent)

    assert cpu_s(16_000) < 20.0 * cpu_s(2_000)  # 8 where it grows with the lines, 50 with their square


def test_a_restart_is_noticed_though_the_counter_has_overtaken_itself() -> None:
    seen = window(counter(100, started_s=1e9), counter(500, started_s=1e9 + 60))
    assert seen.gained("asked_total") is None
    assert "process started anew" in seen.restarts[0]
    assert window(counter(100, 1e9), counter(500, 1e9 + 0.4)).gained("asked_total") == 400, "a clock that was set"


def test_a_label_set_that_appears_began_at_zero() -> None:
    before = text("# TYPE done_total counter", 'done_total{reason="stop"} 3')
    after = text("# TYPE done_total counter", 'done_total{reason="stop"} 5', 'done_total{reason="length"} 4')
    seen = window(before, after)
    assert seen.gained("done_total") == 6
    assert seen.gained("done_total", reason="length") == 4
    assert seen.gained("other_total") is None


def test_gauges_are_weighed_by_time() -> None:
    def at(value: float, at_s: float) -> Snapshot:
        return read_exposition(text("# TYPE running gauge", f"running {value}"), at_s)

    seen = observed([at(2, 0.0), at(4, 1.0), at(4, 9.0), at(0, 10.0)])
    assert seen is not None
    (range_,) = seen.gauges["running"]
    assert (range_.least, range_.most, range_.scrapes) == (0, 4, 4)
    assert range_.mean == pytest.approx((3 + 32 + 2) / 10)


def histogram(*lines: str, name: str = "wait") -> str:
    return text(f"# TYPE {name} histogram", *lines)


EMPTY = histogram(
    'wait_bucket{le="1"} 0', 'wait_bucket{le="2"} 0', 'wait_bucket{le="+Inf"} 0', "wait_count 0", "wait_sum 0"
)


def test_a_histogram_is_of_the_window_only() -> None:
    before = histogram(
        'wait_bucket{le="1"} 90', 'wait_bucket{le="2"} 90', 'wait_bucket{le="+Inf"} 90', "wait_count 90", "wait_sum 9"
    )
    after = histogram(
        'wait_bucket{le="1"} 90',
        'wait_bucket{le="2"} 100',
        'wait_bucket{le="+Inf"} 100',
        "wait_count 100",
        "wait_sum 24",
    )
    found = window(before, after).histograms["wait"]
    assert (found.count, found.mean, found.problem) == (10, 1.5, None)
    assert found.quantile(0.5) == (1.5, False)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            (
                'wait_bucket{le="1"} 5',
                'wait_bucket{le="2"} 3',
                'wait_bucket{le="+Inf"} 6',
                "wait_count 6",
                "wait_sum 1",
            ),
            "not cumulative",
        ),
        (
            (
                'wait_bucket{le="1"} 5',
                'wait_bucket{le="2"} 5',
                'wait_bucket{le="+Inf"} 4',
                "wait_count 5",
                "wait_sum 1",
            ),
            "not cumulative",
        ),
        (('wait_bucket{le="1"} 5', 'wait_bucket{le="2"} 5', "wait_count 5", "wait_sum 1"), r"no \+Inf"),
        (
            (
                'wait_bucket{le="1"} 5',
                'wait_bucket{le="2"} 5',
                'wait_bucket{le="+Inf"} 5',
                "wait_count 7",
                "wait_sum 1",
            ),
            "not its count",
        ),
        (("wait_count 7", "wait_sum 1"), "no buckets"),
    ],
)
def test_malformed_histograms_give_no_percentile(lines: tuple[str, ...], problem: str) -> None:
    """CZ-NIC/knot-resolver#117, micrometer-metrics/micrometer#2394, prometheus/client_js#8: read as they stand, they give
    percentiles that never were."""
    after = histogram(*lines)
    before = histogram(*(f"{line.rsplit(' ', 1)[0]} 0" for line in lines))
    seen = window(before, after)
    if "wait" in seen.histograms:
        found = seen.histograms["wait"]
        assert found.problem is not None
        assert found.quantile(0.5) is None
    else:
        assert any("wait" in said for said in seen.problems)


def test_all_beyond_the_largest_bound_is_said_so() -> None:
    after = histogram(
        'wait_bucket{le="1"} 0', 'wait_bucket{le="2"} 0', 'wait_bucket{le="+Inf"} 8', "wait_count 8", "wait_sum NaN"
    )
    found = window(EMPTY, after).histograms["wait"]
    assert found.quantile(0.95) == (2.0, True)
    assert (found.count, found.mean, found.sum) == (8, None, None), "a sum that is no number says nothing"
    assert window(EMPTY, EMPTY).histograms["wait"].quantile(0.5) is None


def test_one_malformed_family_does_not_hide_the_others() -> None:
    broken = text(
        'asked_total{path="a,b\\"c\\\\"} 3', "# TYPE worse gauge", 'worse{x="} y', "# TYPE fine gauge", "fine 1"
    )
    snapshot = read_exposition(broken, 0.0)
    assert snapshot.families["fine"].samples[0].value == 1
    assert snapshot.families["asked_total"].samples[0].labels == (("path", 'a,b"c\\'),)
    assert [said.partition(":")[0] for said in snapshot.problems] == ["worse"]


@given(st.text(max_size=300))
def test_no_text_is_a_crash(anything: str) -> None:
    read_exposition(anything, 0.0)


def of_engine(name: str) -> ServerWindow:
    return window(*((SAMPLES / f"{name}-{end}.txt").read_text() for end in ("before", "after")))


def test_vllm_as_its_server_writes_it() -> None:
    seen = of_engine("vllm-0.32")
    assert engine_of(seen.counters.keys()) == "vllm"
    found = figures(seen, "vllm")
    assert (found["output_tokens"].gained, found["prompt_tokens"].gained) == (45, 141)
    assert (found["drafted_tokens"].gained, found["accepted_tokens"].gained) == (27, 27)
    assert found["ttft"].count == 3
    assert found["ttft"].name == "vllm:time_to_first_token_seconds"
    assert found["kv_usage"].name == "vllm:kv_cache_usage_perc"
    assert seen.problems == ()
    assert "vllm:iteration_tokens_total" in seen.histograms, "a histogram whose name ends like a counter's"


# The two below: between the scrapes a client had 64 answers of 32 tokens each from the default model.


def test_llama_cpp_as_its_server_writes_it() -> None:
    """Its count of prompt tokens leaves out those from the cache, so it is the one of prefilled tokens."""
    seen = of_engine("llamacpp-b1-0c1e570")
    found = figures(seen, "llama.cpp")
    assert engine_of(seen.counters.keys()) == "llama.cpp"
    assert (found["output_tokens"].gained, found["prefilled_tokens"].gained, found["cached_tokens"].gained) == (
        64 * 32,
        703,
        1950,
    )
    assert "prompt_tokens" not in found
    assert found["kv_usage"].name is None
    assert found["running"].most == 0
    assert seen.problems == ()


def test_netgain_as_its_server_writes_it() -> None:
    seen = of_engine("netgain-0.1.0")
    found = figures(seen, "netgain")
    assert engine_of(seen.counters.keys()) == "netgain"
    assert (found["requests"].gained, found["output_tokens"].gained) == (64, 64 * 32)
    assert (found["ttft"].count, found["e2e"].count, found["itl"].count) == (64, 64, 64 * 31)
    prompt, cached = found["prompt_tokens"].gained, found["cached_tokens"].gained
    assert prompt is not None
    assert cached is not None
    assert 0 < cached < prompt
    assert (found["ttft"].between["p50"], found["ttft"].above) == ((0.05, 0.1), ())
    assert found["running"].most == 0
    assert seen.restarts == ()


@pytest.mark.parametrize("name", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"])
def test_a_renamed_metric_is_found_and_a_missing_one_is_not_zero(name: str) -> None:
    """kubernetes-sigs/inference-perf#277, vllm-project/vllm#27341: after a renaming the figure was 0 for days."""
    usage = text(f"# TYPE {name} gauge", f'{name}{{engine="0"}} 0.25', f'{name}{{engine="1"}} 0.75')
    found = figures(window(usage, usage), "vllm")
    assert (found["kv_usage"].name, found["kv_usage"].mean) == (name, 0.5)
    missing = found["running"]
    assert (missing.name, missing.mean, missing.most) == (None, None, None)
    assert missing.tried == ("vllm:num_requests_running",)


def test_of_several_engines_requests_add_up_and_the_fullest_cache_shows() -> None:
    """volcano-sh/kthena#1782, kaito-project/kaito#2030: one series of several was kept, and a full engine did not show."""

    def page(tokens: int) -> str:
        lines = list[str]()
        for name, kind, values in (
            ("vllm:num_requests_running", "gauge", (3, 5)),
            ("vllm:kv_cache_usage_perc", "gauge", (0.2, 0.8)),
            ("vllm:generation_tokens_total", "counter", (tokens, 2 * tokens)),
        ):
            lines.append(f"# TYPE {name} {kind}")
            lines += [f'{name}{{engine="{engine}",model_name="m"}} {value}' for engine, value in enumerate(values)]
        name = "vllm:time_to_first_token_seconds"
        lines.append(f"# TYPE {name} histogram")
        for engine in range(2):
            own = f'engine="{engine}",model_name="m"'
            lines += [f'{name}_bucket{{{own},le="{bound}"}} {tokens}' for bound in ("1", "+Inf")]
            lines += [f"{name}_count{{{own}}} {tokens}", f"{name}_sum{{{own}}} {tokens / 2}"]
        return text(*lines)

    found = figures(window(page(10), page(30)), "vllm")
    assert (found["running"].mean, found["output_tokens"].gained, found["ttft"].count) == (8, 60, 40)
    usage = found["kv_usage"]
    assert (usage.least, usage.mean, usage.most) == (0.2, 0.5, 0.8)


def test_other_models_of_a_server_are_left_out() -> None:
    """volcano-sh/kthena#1782: two models behind one page of metrics were taken for one."""

    def page(mine: int, theirs: int) -> Snapshot:
        name = "vllm:generation_tokens_total"
        series = (f'{name}{{model_name="m"}} {mine}', f'{name}{{model_name="n"}} {theirs}')
        return read_exposition(
            text(f"# TYPE {name} counter", *series, "# TYPE up_total counter", f"up_total {mine}"), mine
        )

    pages = [page(1, 100), page(11, 900)]
    for model, gained in (("m", 10), ("n", 800), ("unknown", 810)):
        seen = observed([of_model(each, model) for each in pages])
        assert seen is not None
        assert figures(seen, "vllm")["output_tokens"].gained == gained
        assert seen.gained("up_total") == 10


@pytest.mark.parametrize(
    "name", ["sglang:generation_tokens_total", "sglang_generation_tokens_total", "sglang:generation_tokens"]
)
def test_sglang_in_its_spellings(name: str) -> None:
    """Names as in SGLang 0.5's srt/observability/metrics_collector.py; no server of it runs here."""
    seen = window(text(f"# TYPE {name} counter", f"{name} 5"), text(f"# TYPE {name} counter", f"{name} 25"))
    assert engine_of(seen.counters.keys()) == "sglang"
    assert figures(seen, "sglang")["output_tokens"].gained == 20


def test_unknown_metrics_are_kept_as_they_are() -> None:
    odd = text("odd_thing 3", "# TYPE own_total counter", "own_total 4")
    seen = window(odd, text("odd_thing 5", "# TYPE own_total counter", "own_total 9"))
    assert [(raw.name, raw.first, raw.last) for raw in seen.raw] == [("odd_thing", 3, 5)]
    assert seen.gained("own_total") == 5
    assert engine_of(seen.counters.keys()) is None
    assert not any(math.isnan(raw.first or 0.0) for raw in seen.raw)


def test_a_counter_that_is_first_told_within_the_window_began_at_0_unless_it_was_there_and_malformed() -> None:
    """netgain tells a kind of handoff once it has happened: its family has a heading and no sample before."""
    heading, told = "# TYPE a_total counter\n", '# TYPE a_total counter\na_total{kind="b"} 3\n'
    assert window(heading, told).gained("a_total") == 3.0
    assert window(heading, told, told.replace("3", "5")).gained("a_total") == 5.0
    assert window("# TYPE a_total counter\na_total{kind=} x\n", told).gained("a_total") != 3.0

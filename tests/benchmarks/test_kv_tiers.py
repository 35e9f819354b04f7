"""The figures of KV tiers stand under the names that are promised, unknown with a reason until they are measured; what is
measured is kept piece by piece; a tier that costs more than it may is named."""

import random
import statistics
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from benchmarks import _kv_break_even, _kv_policy, _kv_warm, _kv_workloads, _pieces, codecs, kv_tiers
from benchmarks._kv_process import At, Run
from benchmarks._pieces import Kept, Piece
from netgain.cost.step_cost import StepCost, StepPoint
from netgain.measuring.workload.load import bundled_names
from netgain.serving.runtime.codec_gate.verdict import Interval, Loss, Row

LOSS = Loss(
    perplexity_ratio=Interval(1.002, 0.999, 1.005),
    kl=Interval(0.003, 0.002, 0.004),
    kl_p99=Interval(0.05, 0.04, 0.06),
    same_first=Interval(0.97, 0.96, 0.98),
    positions=2000,
    texts=20,
    found=60,
    found_raw=60,
    asked=96,
    won=0,
    fewer=Interval(0.0, 0.0, 0.01),
)


def row(name: str, loss: Loss | None) -> Row:
    return Row(
        name=name,
        id=f"{name}.1",
        lossy=loss is not None,
        ratio=3.2,
        table_bytes=0,
        encode_bytes_per_s=2.5e8,
        decode_bytes_per_s=5e8,
        loss=loss,
        state="pass" if loss else "token-identical",
        why="",
    )


def test_what_was_measured_of_a_codec_is_told_under_its_name() -> None:
    measured = codecs.figures([row("zstd", None), row("cachegen-fine", LOSS)])
    told = kv_tiers.nothing_known() | kv_tiers.of_codecs(measured)
    assert told["codec_zstd_kl"] == 0.0
    assert {name: told[f"codec_cachegen_fine_{name}"] for name in ("ratio", "encode_gbps", "decode_gbps", "kl")} == {
        "ratio": 3.2,
        "encode_gbps": 0.25,
        "decode_gbps": 0.5,
        "kl": 0.003,
    }
    assert told["codec_int4_ratio"] is None, "not measured"
    assert set(told) == set(kv_tiers.nothing_known()), "and no other figures"


def test_every_codec_has_its_four_figures() -> None:
    names = {name for name in kv_tiers.nothing_known() if name.startswith("codec_")}
    assert len(names) == 4 * 8
    assert {"codec_raw_ratio", "codec_fp8_encode_gbps", "codec_cachegen_coarse_decode_gbps", "codec_int8_kl"} <= names


def test_every_figure_that_is_promised_is_there_with_the_reason_why_it_is_unknown() -> None:
    told = kv_tiers.all_found(Kept(None, "c"), 3)
    tiers = ("dram", "disk", "valkey")
    promised = {
        *(f"warm_{tier}_2048_{figure}" for tier in tiers for figure in ("over_ideal", "speedup")),
        *(f"break_even_tokens_{tier}" for tier in tiers),
        *("policy_regret", "worst_ttft_ratio_with_policy", "policy_median_error", "wrong_tokens"),
        *("mooncake_ideal_hit_rate", "mooncake_replay_s"),
    }
    assert promised <= set(told.figures)
    assert set(told.figures.values()) == {None}
    assert set(told.missing) == set(told.figures)


def test_pieces_of_a_run_that_was_killed_are_not_measured_again(tmp_path: Path) -> None:
    done: list[str] = []

    def piece(name: str) -> Piece:
        return Piece(name, 1.0, lambda: done.append(name) or {"of": name})

    result = tmp_path / "kv.json"
    _pieces.run([piece("a"), piece("b")], Kept(result, "c1"), lambda: None)
    kept = tmp_path / "kv.json.pieces"
    kept.write_text(kept.read_text() + '{"commit": "c1", "name": "c", "val')  # killed while it wrote
    _pieces.run([piece("a"), piece("b"), piece("c")], Kept(result, "c1"), lambda: None)
    assert done == ["a", "b", "c"]
    other = Kept(result, "c2")
    assert "a" not in other, "another commit measured it"
    assert other.others >= 2
    assert "a" not in Kept(result, "c1", again=True)


def warm(gains: dict[int, float], wrong: int = 0) -> Run:
    return Run({length: At(1.0, 1.0 - gain, 0.1, 1000 * length) for length, gain in gains.items()}, 1e9, wrong)


def test_where_loading_begins_to_pay_is_between_the_lengths_around_it() -> None:
    assert _kv_warm.break_even(warm({16: 0.1, 32: 0.2})) == 16.0
    assert _kv_warm.break_even(warm({16: -0.1, 32: -0.1})) is None
    assert _kv_warm.break_even(warm({16: -0.1, 32: 0.1, 64: 0.5})) == pytest.approx(24.0)
    assert _kv_warm.break_even(warm({16: 0.1, 32: -0.1, 64: 0.1})) == pytest.approx(48.0), (
        "the chance gain does not count"
    )


def test_break_even_is_predicted_for_shaped_links_and_for_those_that_were_measured() -> None:
    kept = Kept(None, "c")
    points = [StepPoint(batch=1, tokens=t, context=c, seconds=5e-4 * t) for t in (1, 512) for c in (0, 2048)]
    costs = {"cost": StepCost(points=tuple(points)), "token_bytes": 23_040, "chunk_tokens": 512}
    kept.add("step-cost", msgspec.to_builtins(costs, str_keys=True))
    run = Run({n: At(1.0, 0.1 + 1e-3 + n * 23_040 / 2e9, 0.1, n * 23_040) for n in (16, 256, 2048)}, 2e9, 0)
    kept.add("warm/dram/3", msgspec.to_builtins(run, str_keys=True))
    kept.add("warm/valkey/3", {"missing": "no module named redis"})
    told = kv_tiers.all_found(kept, 3)
    assert told.figures["break_even_predicted_20MB"] == "never"
    assert told.figures["break_even_predicted_1000MB"] == "always"
    assert told.figures["break_even_predicted_dram"] == "always"
    assert told.missing["warm_valkey_2048_speedup"] == "no module named redis"
    assert told.context["break_even_links"]["dram"]["bytes_per_s"] == pytest.approx(2e9, rel=0.05)
    assert _kv_break_even.shown(_kv_break_even.rows(kept, 3)).row_count == 7


def workloads(ratio: float, noise: float = 0.01) -> Kept:
    """Three rounds in which the disk tier takes `ratio` times as long, on prompts that differ."""
    source = random.Random(1)
    kept = Kept(None, "c")
    for number in range(_kv_workloads.ROUNDS):
        for name in (*bundled_names(), _kv_workloads.NO_HITS):
            base = [source.uniform(0.05, 0.5) for _ in range(24)]
            factors = {"without": 1.0, "dram": 1.0, "disk": ratio if name == "edit" else 1.0, "valkey": 1.0}
            times = {arm: [factor * one * source.gauss(1, noise) for one in base] for arm, factor in factors.items()}
            loaded = dict.fromkeys(factors, 0)
            kept.add(
                f"workloads/{name}/{number}",
                {"times": times, "loaded": loaded, "prompt_tokens": 100, "wrong": 0, "missing": {}},
            )
    return kept


def test_a_tier_that_costs_more_than_it_may_is_named_and_fails_the_run(capsys) -> None:
    told = kv_tiers.all_found(workloads(1.1), 3)
    assert told.figures["worst_ttft_ratio_with_policy"] == pytest.approx(1.1, abs=0.02)
    assert told.context["worse_than_3_percent"] == ["edit/disk"]
    assert kv_tiers.show(told, []) == 1
    assert "edit/disk" in capsys.readouterr().out
    equal = kv_tiers.all_found(workloads(1.0), 3)
    assert equal.figures["worst_ttft_ratio_with_policy"] < 1.03
    assert kv_tiers.show(equal, []) == 0


def test_a_cell_fails_only_with_its_whole_interval() -> None:
    told = kv_tiers.all_found(workloads(1.05, noise=0.4), 3)
    cell = told.context["ttft_ratios_with_policy"]["edit/disk"]
    assert cell["low"] < 1.03 < cell["high"]
    assert "edit/disk" not in told.context["worse_than_3_percent"]


def test_rounds_that_were_not_finished_leave_the_figure_unknown() -> None:
    whole = workloads(1.0)
    part = Kept(None, "c")
    for name, value in whole.of("").items():
        if not name.endswith("/2"):
            part.add(name, value)
    told = kv_tiers.all_found(part, 3)
    assert told.figures["worst_ttft_ratio_with_policy"] is None
    assert told.missing["worst_ttft_ratio_with_policy"] == "2 of 3 rounds were finished"


def test_each_arm_comes_first_as_often_as_any_other() -> None:
    arms = ("without", "dram", "disk", "valkey")
    orders = [_kv_workloads.turned(arms, turn) for turn in range(8)]
    assert all(sorted(order) == sorted(arms) for order in orders)
    for place in (0, 3):
        assert sorted(order[place] for order in orders) == sorted(2 * arms)


def test_where_both_are_as_good_the_policy_is_not_said_to_lose() -> None:
    """The smaller of two noisy medians is smaller than either really is."""
    noise = random.Random(1)
    found = []
    for _ in range(60):
        times = {policy: [noise.lognormvariate(0, 0.2) for _ in range(9)] for policy in ("always", "never", "measured")}
        found.append(_kv_policy.regret(times).regret)
    assert statistics.mean(found) == pytest.approx(0, abs=0.03)


def test_a_policy_that_is_a_tenth_slower_than_the_better_one_is_found_out() -> None:
    noise = random.Random(1)
    times = {
        policy: [seconds * noise.lognormvariate(0, 0.03) for _ in range(15)]
        for policy, seconds in (("always", 3.0), ("never", 1.0), ("measured", 1.1))
    }
    told = _kv_policy.regret(times)
    assert told.regret == pytest.approx(0.1, abs=0.03)
    assert told.low < told.regret < told.high
    assert told.low > 0.05
    assert told.better == ("never", "never")

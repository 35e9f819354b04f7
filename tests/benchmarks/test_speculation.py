"""The benchmark of speculation: cells, what is kept of them, and figures out of rounds whose truth is known."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict

import msgspec
import pytest

from benchmarks import _report
from benchmarks.speculation import peers, reference
from benchmarks.speculation.__main__ import chosen, engine_of
from benchmarks.speculation.arms import GOODPUT, NONE, Ran, proposers
from benchmarks.speculation.cells import CONCURRENCIES, ENOUGH, LOADS, PLAIN_CELL, Cell, Journal, Round, phases
from benchmarks.speculation.figures import figures
from benchmarks.speculation.prompts import GROUPS, categories
from netgain.errors import Unavailable, UsageError
from netgain.ledger.records import DraftCounts
from netgain.measuring.workload.item import Item, Message
from tests.exactness.test_tiny_models import random_model

CATEGORIES, WORKLOADS, NAMES = ("copy", "qa"), ("chat", "edit"), ("ngram", "draft")


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    pytest.importorskip("torch")
    return random_model(tmp_path_factory.mktemp("small"), "llama")


def ran(seconds, steps=(), tokens=33, decode_s=None) -> Ran:
    """`steps`: (drafted, accepted) of its verify steps; the rest of `tokens` came one by one."""
    drafts = DraftCounts()
    for drafted, accepted in steps:
        drafts.add(drafted, accepted)
    return Ran(
        seconds=seconds,
        decode_s=seconds if decode_s is None else decode_s,
        output_tokens=tokens,
        later_tokens=tokens - 1,
        drafts=drafts,
        answers=("a",),
    )


def rounds(cell, *pairs, name="ngram", steps=(), mismatches=0):
    return [
        Round(
            cell=cell,
            number=number,
            order=(NONE, name),
            ran={NONE: ran(plain), name: ran(drafting, steps)},
            mismatches={name: mismatches},
        )
        for number, (plain, drafting) in enumerate(pairs)
    ]


def found(measured):
    return figures(measured, CATEGORIES, WORKLOADS, NAMES)


def test_every_figure_is_there_and_null_before_anything_ran():
    empty = found([])
    for category in CATEGORIES:
        for name in NAMES:
            for load in CONCURRENCIES:
                for kind in ("speedup", "tokens_per_iteration", "overhead"):
                    assert empty[f"{kind}_{category}_{name}_c{load}"] is None
                assert empty[f"speedup_{category}_{name}_c{load}_low"] is None
    for key in (
        "speedup_copy_c1",
        "speedup_copy_c1_low",
        "categories_above_1_c1",
        "worst_goodput_ratio",
        "worst_goodput_ratio_high",
        "token_mismatches",
        "control_losses",
    ):
        assert empty[key] is None
    assert empty.keys() == found(rounds(Cell("speedup", "qa", 4), (1.0, 2.0))).keys()


def test_speedup_is_total_over_total_and_overhead_is_what_an_iteration_costs_more():
    # 32 tokens behind the first: 8 steps of 3 + 1; twice as fast, so each step takes twice a plain one
    measured = rounds(Cell("speedup", "copy", 1), (2.0, 1.0), (4.0, 2.0), steps=[(4, 3)] * 8)
    out = found(measured)
    assert out["speedup_copy_ngram_c1"] == out["speedup_copy_c1"] == 2.0
    assert out["tokens_per_iteration_copy_ngram_c1"] == 4.0
    assert out["overhead_copy_ngram_c1"] == pytest.approx(2.0)
    assert out["speedup_copy_ngram_c1_low"] is None, "two rounds give no interval"
    assert out["speedup_copy_draft_c1"] is None


def test_the_interval_covers_the_truth_and_rounds_are_pairs():
    slow_machine = [(1.5 * factor, 1.0 * factor) for factor in (1, 2, 10, 1, 3, 1)]  # disturbed alike
    out = found(rounds(Cell("speedup", "copy", 1), *slow_machine))
    assert out["speedup_copy_ngram_c1_low"] == pytest.approx(1.5)
    assert out["speedup_copy_ngram_c1_high"] == pytest.approx(1.5)


def test_where_a_gain_turns_into_a_loss_is_located():
    cells = [Cell("speedup", "copy", load) for load in CONCURRENCIES]
    measured = [one for cell, s in zip(cells, (2.0, 1.2, 0.7), strict=True) for one in rounds(cell, (s, 1.0))]
    assert found(measured)["pays_up_to_c_copy_ngram"] == 4
    assert found(measured[2:])["pays_up_to_c_copy_ngram"] == 0
    assert found([])["pays_up_to_c_copy_ngram"] is None


@pytest.mark.parametrize(("taken", "losses"), [(1.02, 0), (1.2, 1), (0.8, 0)])
def test_the_control_loses_only_where_the_whole_interval_lies_beyond_the_limit(taken, losses):
    name = "ngram" + GOODPUT
    measured = rounds(Cell("control", "chat", 8), *[(1.0 + 0.01 * n, taken + 0.01 * n) for n in range(6)], name=name)
    measured += rounds(Cell("control", "edit", 8), *[(1.0, 0.9)] * 6, name=name)
    out = found(measured)
    assert out["control_losses"] == losses
    assert out["worst_goodput_ratio"] == pytest.approx(min(1 / taken, 1 / 0.9), rel=0.01)
    assert out["worst_goodput_cell"] == ("chat_ngram_c8" if taken > 0.9 else "edit_ngram_c8")
    assert out["goodput_cells_beyond"] == losses
    assert out["goodput_beyond"].startswith("chat_ngram_c8 0.8" if losses else "")


def test_few_rounds_convict_nobody():
    name = "ngram" + GOODPUT
    out = found(rounds(Cell("control", "chat", 8), (1.0, 2.0), (1.0, 2.0), name=name))
    assert out["worst_goodput_ratio"] == 0.5
    assert out["control_losses"] is None


def test_every_request_whose_tokens_differ_is_counted():
    cell = Cell("speedup", "qa", 1)
    out = found([*rounds(cell, (1.0, 1.0), mismatches=1), *rounds(cell, (1.0, 1.0))])
    assert (out["token_mismatches"], out["requests_compared"]) == (1, 2)


def test_a_run_goes_on_behind_its_last_whole_line(tmp_path):
    path, asked = tmp_path / "r.jsonl", {"k": 4}
    journal = Journal(path, asked, fresh=False)
    for one in rounds(Cell("speedup", "qa", 4), (1.0, 2.0), (3.0, 4.0)):
        journal.add(one)
    path.write_bytes(path.read_bytes()[:-9])  # the crash of a later one
    again = Journal(path, asked, fresh=False)
    assert [one.number for one in again.rounds] == [0]
    again.add(journal.rounds[1])
    assert Journal(path, asked, fresh=False).rounds == journal.rounds
    with pytest.raises(UsageError, match="other settings"):
        Journal(path, {"k": 5}, fresh=False)
    assert Journal(path, {"k": 5}, fresh=True).rounds == []


def test_the_control_is_judged_by_pairs():
    """A machine that is ten times slower during a round says nothing against the arm that ran in it."""
    name = "ngram" + GOODPUT
    pairs = [(1.0, 1.01), (10.0, 10.1), (1.0, 1.01), (1.0, 1.01), (3.0, 3.03)]
    out = found(rounds(Cell("control", "chat", 8), *pairs, name=name))
    for end in ("", "_low", "_high"):
        assert out[f"worst_goodput_ratio{end}"] == pytest.approx(1 / 1.01)


def test_categories_that_gain_for_certain_are_counted():
    sure = rounds(Cell("speedup", "qa", 1), *[(1.2, 1.0)] * ENOUGH)
    doubtful = rounds(Cell("speedup", "rag", 1), *[(1.5, 1.0), (0.6, 1.0)] * ENOUGH)
    copying = rounds(Cell("speedup", "copy", 1), *[(3.0, 1.0)] * ENOUGH)
    out = figures([*sure, *doubtful, *copying], ("copy", "qa", "rag"), WORKLOADS, NAMES)
    assert out["categories_above_1_c1"] == 1
    assert out["speedup_copy_c1_low"] == pytest.approx(3.0)


def result_of_peers(path, context=(), **figures):
    path.write_text(json.dumps({**figures, "_context": {**_report.machine(), **dict(context)}}))
    return path


def plain_rounds(ms):
    ran_of = ran(seconds=1.0, tokens=257, decode_s=256 * ms / 1e3)
    return [Round(cell=PLAIN_CELL, number=0, order=(NONE,), ran={NONE: ran_of}, mismatches={})]


def test_one_stream_is_set_beside_the_peers_benchmark(tmp_path):
    kept = result_of_peers(tmp_path / "peers-x.json", decode_c1_netgain_q4_1=5.0, decode_c1_netgain_bf16=10.0)
    out = reference.figures(plain_rounds(5.1), "default", "auto", kept)
    assert out["none_c1_over_peers"] == pytest.approx(1.02)
    assert out["none_c1_over_peers_file"] == "peers-x.json"
    assert out["none_c1_over_peers_missing"] is None
    assert reference.figures(plain_rounds(5.1), "default", "bf16", kept)["none_c1_over_peers"] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("model", "dtype", "context", "measured", "why"),
    [
        ("default", "fp32", {}, True, "does not measure default with dtype fp32"),
        ("/other/model.gguf", "auto", {}, True, "does not measure model.gguf"),
        ("default", "auto", {"cpu": "another"}, True, "another machine"),
        ("default", "int8", {}, True, "no result of the peers benchmark has decode_c1_netgain_int8"),
        ("default", "auto", {}, False, "no round of the plain cell"),
    ],
)
def test_unlike_things_are_not_compared_and_the_reason_is_said(tmp_path, model, dtype, context, measured, why):
    kept = result_of_peers(tmp_path / "peers-x.json", context, decode_c1_netgain_q4_1=5.0)
    out = reference.figures(plain_rounds(5.1) if measured else [], model, dtype, kept)
    assert out["none_c1_over_peers"] is None
    assert why in out["none_c1_over_peers_missing"]


def test_a_run_that_starts_no_engine_keeps_what_the_one_before_said_of_its_own(tmp_path):
    kept = result_of_peers(tmp_path / "r.json", {"engine": {"kernels": "k"}})
    assert engine_of(kept) == {"kernels": "k"}
    assert engine_of(result_of_peers(tmp_path / "older.json")) == {}
    assert engine_of(tmp_path / "none.json") == engine_of(None) == {}


@pytest.mark.parametrize(("names", "found"), [(None, {"a": 1, "b": 2}), ([], {}), (["b"], {"b": 2})])
def test_a_run_is_limited_to_what_is_named(names, found):
    assert chosen({"a": 1, "b": 2}, names, "category") == found
    with pytest.raises(UsageError, match="'c' is no category; known are a, b"):
        chosen({"a": 1, "b": 2}, ["c"], "category")


def test_several_trained_drafts_are_arms_of_their_own(tmp_path):
    for kind in ("feature", "medusa", "layers"):
        manifest = {"kind": kind, "target": "t", "target_name": "T", "tokenizer": "k", "data": "d", "taps": [2]}
        manifest |= {"positions": 2, "recipe": {}, "acceptance": [0.4, 0.1], "held_out": 9, "made_at": "", "schema": 1}
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "draft.json").write_text(json.dumps(manifest))
    found = proposers([tmp_path / kind for kind in ("feature", "medusa", "layers")], 8)
    assert list(found) == ["ngram", "suffix", "feature", "medusa", "layers"]
    assert (found["ngram"]["k"], found["suffix"]["k"]) == (8, 16)
    assert {found[kind]["k"] for kind in ("feature", "medusa", "layers")} == {2}, "more than they were trained to say"
    assert found["layers"]["draft_dtype"] == "int8"


def test_every_round_asks_other_prompts():
    pool = list(range(10))
    for cell in (Cell("speedup", "copy", 4), Cell("control", "edit", 8)):
        assert cell.items(pool, 0) == pool[:8]
        assert cell.items(pool, 1) == [8, 9, 0, 1, 2, 3, 4, 5]


def test_all_cells_are_asked_once_and_what_must_be_shown_first():
    found = phases(("copy", "qa", "multi_turn", "translation"), WORKLOADS)
    cells = [cell for phase in found for cell in phase.cells]
    assert len(set(cells)) == len(cells) == 1 + 4 * len(CONCURRENCIES) + len(WORKLOADS) * len(LOADS)
    assert found[0].cells == (PLAIN_CELL,)
    assert [phase.cells for phase in found[1:4]] == [
        (Cell("speedup", name, 1),) for name in ("copy", "multi_turn", "translation")
    ]
    assert {cell.kind for cell in found[4].cells} == {"control"}
    assert all(phase.rounds >= ENOUGH for phase in found)


@pytest.mark.shared_data
def test_spec_bench_has_its_six_groups_of_eighty(shared_data):
    found = categories(shared_data / "prompts/spec_bench.jsonl", 64)
    assert set(found) == {"copy", *GROUPS.values()}
    assert all(len(items) == 80 for name, items in found.items() if name != "copy")


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question_id": 1, "category": "cooking", "turns": ["?"]}))
    with pytest.raises(UsageError, match="Spec-Bench"):
        categories(path, 64)


@pytest.mark.parametrize("pace_s", [0.01, 0.15])
async def test_peers_end_in_time_however_slow_they_are(pace_s):
    """One reads a prompt at 60 tokens a second: its cells are judged by what the slowest took, not by netgain's pace."""
    pools = {"qa": [Item(id=f"q{n}", category="c", max_tokens=1, prompt="?") for n in range(64)]}
    asked, rates = [], defaultdict(list)

    async def rate_of(name, items, concurrency, until_s):
        asked.append((name, concurrency))
        await asyncio.sleep(pace_s * len(items))
        return 1.0

    until_s = time.monotonic() + 0.7
    await peers.by_turns(["none", "ngram"], pools, until_s, rate_of, rates)
    assert time.monotonic() < until_s + 1.0  # one of eight requests would have taken twice that
    turning = [("none", 1), ("ngram", 1), ("ngram", 1), ("none", 1)]
    assert asked[:4] == turning[: len(asked)]
    assert all(concurrency == 1 for _, concurrency in asked), "a cell of many was begun that could not end"
    assert len(rates[Cell("speedup", "qa", 1), "none"]) == len(asked) / 2


async def test_slices_of_arms_take_turns_and_count_their_own_time_only(small_model):
    from benchmarks.speculation.arms import Arm, by_turns

    items = [Item(id=f"i{n}", category="c", max_tokens=24, prompt="one two one two " * 3) for n in range(3)]
    model = {"source": str(small_model), "dtype": "auto"}
    arms = [Arm(name, model, {}, 1) for name in ("a", "b")]
    try:
        blocks = [arm.block(items, 2, "s") for arm in arms]
        began_s = time.monotonic()
        await by_turns(blocks, 0.0)
        taken_s = time.monotonic() - began_s
        first, second = (block.ran for block in blocks)
        assert first.answers == second.answers
        assert first.output_tokens == 3 * 24
        assert 0.5 * taken_s < first.seconds + second.seconds <= taken_s
        assert max(first.seconds, second.seconds) < 0.75 * taken_s
    finally:
        for arm in arms:
            arm.close()


def test_why_a_server_did_not_start_is_kept_without_its_log():
    error = Unavailable("the server was not ready after 9 s; look at its log. The end of x.log:\n a line failed")
    assert peers.told(error) == "the server was not ready after 9 s"


def test_peers_figures_are_ratios_within_a_round():
    cell = Cell("speedup", "qa", 1)
    out = peers.figures({(cell, "none"): [100.0, 50.0], (cell, "ngram"): [200.0, 100.0]}, ("qa",))
    assert out["vllm_speedup_qa_ngram_c1"] == 2.0
    assert out["vllm_tokens_per_s_qa_none_c1"] == 75.0
    assert out["vllm_speedup_qa_suffix_c1"] is None
    assert msgspec.json.encode(out)


async def test_cells_of_both_kinds_run_and_are_resumed(tmp_path, small_model):
    """Engines over a tiny model: everything but the speed is real."""
    from benchmarks.speculation.measuring import Asked, Bench

    items = [
        Item(id=f"i{n}", category="c", max_tokens=12, messages=(Message("user", "one two one two one two " * n),))
        for n in range(1, 9)
    ]
    questions = {"copy": items, "qa": items}
    pools = {"plain": {"decode": items}, "speedup": questions, "waves": questions, "control": {"chat": items}}
    ways = {"ngram": {"method": "ngram", "k": 3, "lookup_min": 1}, "suffix": {"method": "suffix", "k": 3}}
    asked = Asked(model=str(small_model), dtype="auto", k=3, max_tokens=12, threads=1, drafts=(), data=None)
    path = tmp_path / "r.jsonl"
    journal = Journal(path, msgspec.structs.asdict(asked), fresh=False)
    bench = Bench(asked, ways, pools, journal, controlled=["ngram"], curve_s=0.5)
    expected = bench.expected
    assert set(expected) == {"plain", "control", "speedup c1", "speedup c4", "speedup c16"}
    with contextlib.closing(bench):
        cells = [Cell("speedup", "copy", 1), Cell("speedup", "qa", 4), Cell("control", "chat", 32), PLAIN_CELL]
        for cell in cells:
            await bench.turn(cell)
        assert bench.info["speculation"] == "none"
        assert bench.expected["speedup c4"] != expected["speedup c4"], "what was measured is not used"
    assert [len(journal.of(cell)) for cell in cells] == [4, 1, 1, 1]
    assert set(journal.of(PLAIN_CELL)[0].ran) == {NONE}
    assert set(journal.of(cells[2])[0].ran) == {NONE, "ngram" + GOODPUT}
    out = figures(
        Journal(path, msgspec.structs.asdict(asked), fresh=False).rounds, ("copy", "qa"), ("chat",), ("ngram", "suffix")
    )
    assert out["token_mismatches"] == 0
    assert out["requests_compared"] == 2 * (4 + 8) + 32
    for key in ("speedup_copy_ngram_c1", "speedup_qa_suffix_c4", "goodput_chat_ngram_c32", "overhead_copy_suffix_c1"):
        assert out[key] > 0
    assert out["tokens_per_iteration_copy_ngram_c1"] >= 1.0
    assert len({one.order for one in journal.of(cells[0])}) == 3, "the arms do not take turns"


async def test_no_cell_is_begun_that_does_not_fit_into_the_time(small_model):
    from benchmarks.speculation.measuring import Asked, Bench

    asked = Asked(model=str(small_model), dtype="auto", k=3, max_tokens=12, threads=1, drafts=(), data=None)
    slow = [Item(id=f"i{n}", category="c", max_tokens=400, prompt="?") for n in range(8)]
    pools = {"plain": {"decode": slow}, "speedup": {"copy": slow}, "waves": {"copy": slow}, "control": {"chat": slow}}
    bench = Bench(asked, {"ngram": {"method": "ngram", "k": 3}}, pools, Journal(None, {}, fresh=False))
    await bench.run(time.monotonic() + 0.5)
    assert bench.info == {}

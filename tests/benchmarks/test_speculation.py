"""The benchmark of speculation: cells, what is kept of them, and figures out of rounds whose truth is known."""

import contextlib
import json
import time

import msgspec
import pytest

from benchmarks.speculation import peers
from benchmarks.speculation.arms import GOODPUT, NONE, Ran
from benchmarks.speculation.cells import CONCURRENCIES, LOADS, Cell, Journal, Round, all_cells
from benchmarks.speculation.figures import figures
from benchmarks.speculation.prompts import GROUPS, categories
from netgain.errors import UsageError
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
    for key in ("speedup_copy_c1", "worst_goodput_ratio", "token_mismatches", "control_losses"):
        assert empty[key] is None
    assert empty.keys() == found(rounds(Cell("speedup", "qa", 4), (1.0, 2.0))).keys()


def test_speedup_is_total_over_total_and_overhead_is_what_an_iteration_costs_more():
    # 32 tokens behind the first: 8 steps of 3 + 1; twice as fast, so each step takes twice a plain one
    measured = rounds(Cell("speedup", "copy", 1), (2.0, 1.0), (4.0, 2.0), steps=[(4, 3)] * 8)
    out = found(measured)
    assert out["speedup_copy_ngram_c1"] == out["speedup_copy_c1"] == 2.0
    assert out["tokens_per_iteration_copy_ngram_c1"] == 4.0
    assert out["overhead_copy_ngram_c1"] == pytest.approx(2.0)
    assert out["speedup_low_copy_ngram_c1"] is None, "two rounds give no interval"
    assert out["speedup_copy_draft_c1"] is None


def test_the_interval_covers_the_truth_and_rounds_are_pairs():
    slow_machine = [(1.5 * factor, 1.0 * factor) for factor in (1, 2, 10, 1, 3, 1)]  # disturbed alike
    out = found(rounds(Cell("speedup", "copy", 1), *slow_machine))
    assert out["speedup_low_copy_ngram_c1"] == pytest.approx(1.5)
    assert out["speedup_high_copy_ngram_c1"] == pytest.approx(1.5)


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


def test_speedups_ask_other_prompts_every_round_and_the_control_the_same():
    pool = list(range(10))
    cell, control = Cell("speedup", "copy", 4), Cell("control", "edit", 4)
    assert cell.items(pool, 0) == pool[:8]
    assert cell.items(pool, 1) == [8, 9, 0, 1, 2, 3, 4, 5]
    assert control.items(pool, 0) == control.items(pool, 3) == pool[:4]


def test_all_cells_are_asked_once_and_the_telling_ones_first():
    cells = all_cells(CATEGORIES, WORKLOADS)
    assert len(set(cells)) == len(cells) == len(CATEGORIES) * 3 + len(WORKLOADS) * len(LOADS)
    assert all(cell.concurrency == 1 and cell.kind == "speedup" for cell in cells[: len(CATEGORIES)])


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
    pools = {"speedup": {"copy": items, "qa": items}, "control": {"chat": items}}
    ways = {"ngram": {"method": "ngram", "k": 3, "lookup_min": 1}, "suffix": {"method": "suffix", "k": 3}}
    asked = Asked(model=str(small_model), dtype="auto", k=3, max_tokens=12, threads=1, drafts=(), data=None)
    path = tmp_path / "r.jsonl"
    journal = Journal(path, msgspec.structs.asdict(asked), fresh=False)
    bench = Bench(asked, ways, pools, journal, curve_s=0.5)
    with contextlib.closing(bench):
        cells = [Cell("speedup", "copy", 1), Cell("speedup", "qa", 4), Cell("control", "chat", 32)]
        for cell in cells:
            await bench.turn(cell)
        assert bench.info["speculation"] == "none"
    assert [len(journal.of(cell)) for cell in cells] == [4, 1, 1]
    out = figures(
        Journal(path, msgspec.structs.asdict(asked), fresh=False).rounds, ("copy", "qa"), ("chat",), ("ngram", "suffix")
    )
    assert out["token_mismatches"] == 0
    assert out["requests_compared"] == 2 * (4 + 8 + 32)
    for key in ("speedup_copy_ngram_c1", "speedup_qa_suffix_c4", "goodput_chat_ngram_c32", "overhead_copy_suffix_c1"):
        assert out[key] > 0
    assert out["tokens_per_iteration_copy_ngram_c1"] >= 1.0
    assert len({one.order for one in journal.of(cells[0])}) == 4, "the arms do not take turns"


async def test_no_cell_is_begun_that_does_not_fit_into_the_time(small_model):
    from benchmarks.speculation.measuring import Asked, Bench

    asked = Asked(model=str(small_model), dtype="auto", k=3, max_tokens=12, threads=1, drafts=(), data=None)
    pools = {"speedup": {"copy": []}, "control": {"chat": []}}
    bench = Bench(asked, {"ngram": {"method": "ngram", "k": 3}}, pools, Journal(None, {}, fresh=False))
    await bench.run(time.monotonic() + 0.5)
    assert bench.info == {}

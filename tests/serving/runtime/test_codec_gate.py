"""A lossy codec serves a model only after its loss on that very model was measured and found small."""

from pathlib import Path
from shutil import copytree

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from netgain.deciding.technique.codecs_told import codecs_told  # noqa: E402
from netgain.errors import UsageError  # noqa: E402
from netgain.measuring.quality.paired_scores import tango_interval  # noqa: E402
from netgain.serving.blocks.keys import Namespace  # noqa: E402
from netgain.serving.runtime.codec_gate import kept  # noqa: E402
from netgain.serving.runtime.codec_gate.measure import _tail  # noqa: E402
from netgain.serving.runtime.codec_gate.retrieval import passages  # noqa: E402
from netgain.serving.runtime.codec_gate.run import measured  # noqa: E402
from netgain.serving.runtime.codec_gate.serving import measured_codecs  # noqa: E402
from netgain.serving.runtime.codec_gate.verdict import Interval, Loss, judge, more_questions  # noqa: E402
from netgain.serving.tiers.codecs.in_numpy import InNumpy  # noqa: E402

TEXTS = [
    f"Section {n}. " + "The ferry leaves at noon, and the harbour master signs the list of passengers. " * 2
    for n in range(3)
]
HOW = {"dtype": "fp32", "interval": tango_interval, "passages": 12}
NAMES = ("raw", "zstd", "int8", "int4", "cachegen-coarse")


@pytest.fixture(scope="module")
def once():
    """Room for what is measured once and copied for each test."""
    return {}


@pytest.fixture
def report(once, tiny, tmp_path, requires_compiler):
    if not once:
        model, told = tiny(max_position_embeddings=2048), []
        cache = tmp_path / "first"
        found = measured(str(model.folder), NAMES, TEXTS, cache, lambda what, done: told.append(done), **HOW)
        assert told == sorted(told)
        assert told[-1] == 1.0
        once.update(folder=model.folder, cache=cache, found=found)
    return once["folder"], Path(copytree(once["cache"], tmp_path / "cache")), once["found"]


def good(**changed):
    loss = Loss(
        perplexity_ratio=Interval(1.002, 0.999, 1.005),
        kl=Interval(0.003, 0.002, 0.004),
        kl_p99=Interval(0.05, 0.04, 0.07),
        same_first=Interval(0.97, 0.96, 0.98),
        positions=2000,
        texts=20,
        found=240,
        found_raw=240,
        asked=384,
        won=0,
        fewer=Interval(0.0, 0.0, 0.0),
    )
    changed = msgspec.structs.replace(loss, **changed)
    low, high = tango_interval(changed.asked, changed.lost, changed.won)
    return msgspec.structs.replace(changed, fewer=Interval((changed.lost - changed.won) / changed.asked, -high, -low))


def judged(**changed):
    return judge(good(**changed), tango_interval)


def test_lossless_codecs_are_token_identical_and_lossy_ones_lose_more_with_fewer_bits(report):
    _, _, found = report
    rows = {row.name: row for row in found.rows}
    assert tuple(rows) == NAMES
    assert [rows[name].state for name in ("raw", "zstd")] == ["token-identical"] * 2
    losses = [rows[name].loss.kl.value for name in ("int8", "int4", "cachegen-coarse")]
    assert 0 < losses[0] < losses[1] < losses[2]
    assert rows["raw"].ratio == 1.0
    assert all(row.encode_bytes_per_s > 0 and row.decode_bytes_per_s > 0 for row in found.rows)


def test_what_was_measured_is_kept_and_not_measured_again(report):
    folder, cache, found = report
    again = measured(str(folder), NAMES, TEXTS, cache, lambda what, done: pytest.fail("measured again"), **HOW)
    assert again == found
    told = []
    more = measured(str(folder), ("fp8",), TEXTS, cache, lambda what, done: told.append(done), **HOW)
    assert told
    assert [row.name for row in more.rows] == ["fp8"]
    assert kept.read(cache, found.subject).row("int8") == found.row("int8")


def test_serving_takes_a_codec_by_what_was_measured(report):
    """LMCache/LMCache#4666 (blending), #717: something lossy ran on models that nobody had judged it on."""
    _, cache, found = report
    arithmetic = InNumpy()
    for name in ("raw", "zstd"):
        assert not kept.usable(name, found.subject, cache, arithmetic, "m")[0].lossy
    for row in found.rows:
        if row.state == "pass":
            assert kept.usable(row.name, found.subject, cache, arithmetic, "m")[1] == row
        elif row.lossy:
            with pytest.raises(UsageError, match="did not pass its quality gate"):
                kept.usable(row.name, found.subject, cache, arithmetic, "m")
            codec, known = kept.usable(row.name, found.subject, cache, arithmetic, "m", forced=True)
            assert (codec.id, known) == (row.id, row)
    assert any(row.state == "fail" for row in found.rows)


def test_the_lab_reads_what_a_server_tells_of_it(report):
    _, cache, found = report
    subject = found.subject
    namespace = Namespace(
        weights=subject.weights,
        adapter="",
        tokenizer="",
        rope="",
        kv_dtype=subject.kv_dtype,
        numerics=subject.numerics,
    )
    told = msgspec.json.encode(measured_codecs(namespace, subject.block_tokens, cache)).decode()
    read = {one.name: one for one in codecs_told({"kv_codecs_measured": told}).measured}
    assert {(one.name, one.state, one.lossy) for one in read.values()} == {
        (row.name, row.state, row.lossy) for row in found.rows
    }
    assert read["int4"].rates.ratio == found.row("int4").ratio
    assert read["int4"].rates.decode_bytes_per_s == found.row("int4").decode_bytes_per_s
    assert measured_codecs(namespace, subject.block_tokens + 1, cache) == []


def test_another_model_kernel_or_block_size_has_not_been_measured(report):
    _, cache, found = report
    for change in ({"weights": "0" * 32}, {"numerics": "other"}, {"kv_dtype": "bfloat16"}, {"block_tokens": 32}):
        other = msgspec.structs.replace(found.subject, **change)
        with pytest.raises(UsageError, match="has not been measured: netgain cache codecs m"):
            kept.usable("int8", other, cache, InNumpy(), "m")
        assert kept.usable("int8", other, cache, InNumpy(), "m", forced=True)[1] is None
        with pytest.raises(UsageError, match="has not been measured"):
            kept.usable("cachegen-coarse", other, cache, InNumpy(), "m", forced=True)


def test_tables_that_were_changed_or_lost_are_refused(report):
    _, cache, found = report
    id_ = found.row("cachegen-coarse").id
    file = Path(cache, "kv-codecs", f"{id_.rpartition('.')[2]}.tables")
    whole = file.read_bytes()
    others = [one for one in file.parent.glob("*.tables") if one != file]
    for spoiled in (b"", whole[:-3], others[0].read_bytes()):
        file.write_bytes(spoiled)
        with pytest.raises(UsageError, match="make them again"):
            kept.usable("cachegen-coarse", found.subject, cache, InNumpy(), "m", forced=True)
    file.unlink()
    with pytest.raises(UsageError, match="make them again"):
        kept.usable("cachegen-coarse", found.subject, cache, InNumpy(), "m", forced=True)


def test_the_gate_passes_only_what_lies_within_every_limit():
    assert judged()[0] == "pass"
    over = {
        "perplexity_ratio": Interval(1.03, 1.02, 1.04),
        "kl": Interval(0.05, 0.03, 0.07),
        "same_first": Interval(0.9, 0.88, 0.93),
        "kl_p99": Interval(0.5, 0.4, 0.7),
        "found": 215,
    }
    for figure, value in over.items():
        assert judged(**{figure: value})[0] == "fail", figure
    for figure, value in {
        "perplexity_ratio": Interval(1.008, 0.99, 1.02),
        "kl": Interval(0.015, 0.01, 0.03),
        "same_first": Interval(0.945, 0.93, 0.96),
        "kl_p99": Interval(0.25, 0.2, 0.35),
        "found": 235,
    }.items():
        state, why = judged(**{figure: value})
        assert state == "not enough", figure
        assert "cannot be judged with so few prompts: " in why


def test_how_many_more_texts_or_questions_would_tell_is_said_and_holds():
    assert "20 more texts" in judged(kl_p99=Interval(0.2, 0.1, 0.34))[1]
    assert "too near to the limit" in judged(kl_p99=Interval(0.3, 0.1, 0.5))[1]
    few = {"asked": 96, "found": 60, "found_raw": 60}
    state, why = judged(**few)
    assert state == "not enough", "none lost of 96 is still up to 3.8 % of all"
    more = more_questions(good(**few), tango_interval, 0.02)
    assert 80 < more < 110
    assert f"{more} more questions" in why
    assert judged(asked=96 + more, found=100, found_raw=100)[0] == "pass"


def test_the_interval_of_the_tail_is_wide_where_one_text_makes_it():
    alike = [np.linspace(0.0, 0.2, 100) for _ in range(20)]
    one = [*alike[:-1], np.linspace(0.0, 20.0, 100)]
    narrow, wide = _tail(alike), _tail(one)
    assert narrow.low <= narrow.value <= narrow.high
    assert narrow.high - narrow.low < 0.01
    assert wide.low < 0.3 < wide.high
    assert _tail(one) == wide, "the same numbers give the same interval"


def test_a_model_that_finds_nothing_is_not_judged_by_what_it_finds():
    state, why = judged(found=0, found_raw=40)
    assert state == "pass"
    assert "model too weak to judge retrieval" in why


def test_answers_in_the_prompt_are_the_rooms_of_the_facts():
    def encode(text):
        return list(text.encode())

    for passage in passages(encode):
        told = bytes(passage.tokens).decode()
        for question in passage.questions:
            text = bytes(question.tokens).decode()
            room = bytes(question.tokens[-question.answer :]).decode()
            what = text.partition("Answer: ")[2].partition(" is kept")[0]
            assert f"{what} is kept in room{room}.\n" in told


def test_kv_that_is_no_plain_numbers_is_refused(tiny, tmp_path):
    with pytest.raises(UsageError, match="bf16 or fp32 KV, not 'int8'"):
        measured(
            str(tiny().folder),
            NAMES,
            TEXTS,
            tmp_path,
            lambda what, done: None,
            kv_dtype="int8",
            interval=tango_interval,
        )

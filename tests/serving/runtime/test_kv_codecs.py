"""A real engine whose tiers hold coded KV: lossless codecs change no token, lossy ones live in a namespace of their own.
The model is random, so no cache of gate results anywhere knows it, and tests need none of their own."""

import shutil
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from netgain.errors import RequestRejected, UsageError
from netgain.ledger.prometheus import Exporter
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.tiers.object import unpack_head
from tests.serving.runtime.test_kv_tiers import (
    PROMPTS,
    SAMPLING,
    answers,
    engine,
    expected,
    folder,
    loaded,
    plain,
    settle,
)

__all__ = ["expected", "folder"]


def codecs_in(place: Path) -> set[str]:
    files = [file for file in place.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"NGKV"]
    return {unpack_head(file.read_bytes()).stored.codec for file in files}


@pytest.mark.parametrize("vault", [False, True])
def test_zstd_gives_back_every_token_with_and_without_a_vault(folder, tmp_path, expected, vault):
    kv = {"vault": str(tmp_path / "keys")} if vault else {}
    tier = f"disk:{tmp_path / 'kv'}:16MiB"
    with engine(folder, tier, codec="zstd", codec_when="always", **kv) as llm:
        assert answers(llm) == expected
        settle(llm)
    assert codecs_in(tmp_path / "kv") == {"zstd.1"}
    with engine(folder, tier, codec="zstd", codec_when="always", **kv) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144


def test_metrics_tell_what_each_codec_did(folder, tmp_path):
    tier = f"disk:{tmp_path / 'kv'}:16MiB"
    with engine(folder, tier, codec="zstd", codec_when="always") as llm:
        answers(llm)
        settle(llm)
        stored = llm.built.engine.tier_counters()["codec_stored/disk/zstd"]
        assert stored == len(list((tmp_path / "kv").rglob("*.kv")))
        answers(llm)
        assert loaded(llm) >= 144
        exporter = Exporter()
        exporter.engine(llm.built.engine.tier_counters())
    figures = {
        (sample.name.removeprefix("netgain_kv_codec_"), sample.labels["codec"]): sample.value
        for family in exporter.registry.collect()
        for sample in family.samples
        if family.name.startswith("netgain_kv_codec_") and not sample.name.endswith("_created")
    }
    assert figures["stored_total", "zstd"] >= stored
    assert 0 < figures["coded_bytes_total", "zstd"] < figures["raw_bytes_total", "zstd"]
    assert figures["encode_seconds_total", "zstd"] > 0
    assert figures["decode_seconds_total", "zstd"] > 0


def test_each_tier_holds_its_own_form_and_no_token_changes(folder, tmp_path, expected):
    """Raw in memory, packed on disk, over a slow link what is soonest there; what is promoted takes the form of its new tier."""
    raw, packed, far = (tmp_path / name for name in ("raw", "packed", "far"))
    tiers = (
        f"disk:{raw}:16MiB?codec=raw",
        f"disk:{packed}:16MiB?codec_when=always",
        f"disk:{far}:16MiB?codec=zstd&bandwidth=1MB/s",
    )
    with engine(folder, *tiers, codec="zstd") as llm:
        assert answers(llm) == expected
        settle(llm)
        counters = llm.built.engine.tier_counters()
        assert (codecs_in(raw), codecs_in(packed)) == ({"raw"}, {"zstd.1"})
        assert "zstd.1" in codecs_in(far)
        assert counters["codec_stored/disk/raw"] == counters["codec_stored/disk2/zstd"] > 9
        assert counters["codec_break_even_bytes_per_s/disk3/zstd"] > 1e6
    shutil.rmtree(raw)
    with engine(folder, *tiers, codec="zstd") as llm:
        completions = llm.generate(PROMPTS, SAMPLING)
        assert [completion.output_ids for completion in completions] == expected
        kv = completions[0].trace.kv
        assert (kv.codecs, kv.source) == ("zstd", "disk2")
        assert 0 < kv.moved_bytes < kv.bytes
        assert kv.decode_s > 0
        settle(llm)
    assert codecs_in(raw) == {"raw"}


def test_over_a_slow_link_kv_is_coded_once_the_link_is_known(folder, tmp_path):
    with engine(folder, f"disk:{tmp_path / 'kv'}:16MiB?bandwidth=1MB/s", codec="zstd") as llm:
        told = []
        for _ in range(2):
            answers(llm)
            settle(llm)
            told.append(
                [llm.built.engine.tier_counters().get(f"codec_stored/disk/{name}", 0) for name in ("raw", "zstd")]
            )
            shutil.rmtree(tmp_path / "kv")
    (raw, coded), (raw_then, coded_then) = told
    assert coded > 0
    assert raw_then == raw
    assert coded_then > coded


def test_lossy_kv_is_found_by_engines_with_that_codec_alone(folder, tmp_path, expected):
    """LMCache/LMCache#717: accuracy fell with the cache on; the lossy form was found under the keys of exact KV."""
    tier = f"disk:{tmp_path / 'kv'}:16MiB"
    lossy = {"codec": "int4", "codec_when": "always", "codec_forced": True}
    with engine(folder, tier, **lossy) as llm:
        answers(llm)
        settle(llm)
        assert llm.built.info["kv_lossy"]
        assert "int4.1; not measured" in llm.built.info["settings_note"]
    assert codecs_in(tmp_path / "kv") == {"int4.1"}
    with engine(folder, tier) as llm:
        assert answers(llm) == expected
        assert loaded(llm) == 0
        settle(llm)
    with engine(folder, tier, **{**lossy, "codec": "int8"}) as llm:
        answers(llm)
        assert loaded(llm) == 0
    with engine(folder, tier, **lossy) as llm:
        answers(llm)
        assert loaded(llm) >= 144
    with engine(folder, tier, codec="zstd") as llm:  # lossless: the namespace of raw KV
        assert answers(llm) == expected
        assert loaded(llm) >= 144


def test_what_one_engine_coded_without_loss_another_reads_without_being_told(folder, tmp_path, expected):
    """LMCache/LMCache#2787: what one side coded never came back, and nobody noticed."""
    tier = f"disk:{tmp_path / 'kv'}:16MiB"
    with engine(folder, tier, codec="zstd", codec_when="always") as llm:
        answers(llm)
        settle(llm)
    with engine(folder, tier) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        assert llm.built.engine.tier_counters()["tier_refused/disk"] == 0
    assert codecs_in(tmp_path / "kv") == {"zstd.1"}


def test_kv_in_int8_is_coded_without_loss_only(folder, tmp_path):
    tier = f"disk:{tmp_path / 'kv'}:16MiB"
    with pytest.raises(UsageError, match="is not rounded again"):
        engine(folder, tier, kv_dtype="int8", codec="int8", codec_forced=True)
    with engine(folder, tier, kv_dtype="int8", codec="zstd", codec_when="always") as llm:
        first = answers(llm)
        settle(llm)
        assert answers(llm) == first == plain(folder, "int8")
        assert loaded(llm) > 140


def test_a_lossy_codec_that_nobody_measured_on_this_model_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="has not been measured: netgain cache codecs"):
        engine(folder, f"disk:{tmp_path / 'kv'}:16MiB", codec="int8")


def test_a_lossy_codec_of_one_tier_is_gated_and_labelled_as_one_of_all(folder, tmp_path):
    with pytest.raises(UsageError, match="has not been measured: netgain cache codecs"):
        engine(folder, "dram:1MiB", f"disk:{tmp_path / 'kv'}:16MiB?codec=int8")
    with engine(folder, "dram:1MiB?codec=raw", f"disk:{tmp_path / 'kv'}:16MiB?codec=int8", codec_forced=True) as llm:
        assert llm.built.info["kv_lossy"]
        assert llm.built.info["kv_codecs"] == ["int8"]


def test_an_unknown_codec_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cachegen'"):
        EngineConfig.model_validate({"kv": {"tiers": ["dram:1MiB"], "codec": "cachgen"}})


def test_what_a_codec_loses_shows_where_kv_is_loaded_though_the_device_has_it(folder, tmp_path):
    """Else quality would be judged on KV that never passed through the codec."""
    whole = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=3)
    later = msgspec.structs.replace(whole, prompt_logprobs_from=100)
    prompt = PROMPTS[:1]

    def laws(completion):
        return completion.prompt_logprobs

    for codec, exact in (("int4", False), ("zstd", True)):
        tier = f"disk:{tmp_path / codec}:16MiB?codec={codec}&codec_when=always"
        with engine(folder, tier, codec_forced=True, policy="measured") as llm:
            (computed,) = llm.generate(prompt, whole)
            settle(llm)
            (again,) = llm.generate(prompt, whole)
            (loaded,) = llm.generate(prompt, later, from_tiers=True)
            (after,) = llm.generate(prompt, later)
        assert loaded.trace.kv.loaded_tokens == 96
        assert (loaded.trace.kv.why, loaded.trace.kv.codecs) == ("always", codec)
        assert laws(loaded)[:101] == (None,) * 101
        assert (laws(loaded)[101:] == laws(computed)[101:]) == exact
        assert laws(again) == laws(computed)
        assert laws(after)[101:] == laws(computed)[101:]  # the device kept its own, exact
        assert after.trace.cached_tokens == 96


def test_loading_from_tiers_needs_some(folder):
    with engine(folder) as llm, pytest.raises(RequestRejected, match="no KV tiers here"):
        llm.generate(PROMPTS[:1], SAMPLING, from_tiers=True)


@pytest.mark.parametrize("first", [-1, 169, 1000])
def test_at_least_one_token_of_a_prompt_is_scored(folder, first):
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=1, prompt_logprobs_from=first)
    with engine(folder) as llm, pytest.raises(RequestRejected, match="logprobs_from is"):
        llm.generate(PROMPTS[:1], sampling)

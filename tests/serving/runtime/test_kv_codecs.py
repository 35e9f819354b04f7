"""A real engine whose tiers hold coded KV: lossless codecs change no token, lossy ones live in a namespace of their own.
The model is random, so no cache of gate results anywhere knows it, and tests need none of their own."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from netgain.errors import UsageError
from netgain.ledger.prometheus import Exporter
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.tiers.object import unpack_head
from tests.serving.runtime.test_kv_tiers import answers, engine, expected, folder, loaded, plain, settle

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
        stored = llm.built.engine.tier_counters()["codec_stored/zstd"]
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


def test_an_unknown_codec_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cachegen'"):
        EngineConfig.model_validate({"kv": {"tiers": ["dram:1MiB"], "codec": "cachgen"}})

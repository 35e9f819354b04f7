"""Figures of codecs stand among those of KV tiers under the names that are promised, unknown until they are measured."""

import pytest

pytest.importorskip("torch")

from benchmarks import codecs, kv_tiers
from netgain.serving.runtime.codec_gate.verdict import Interval, Loss, Row

LOSS = Loss(
    perplexity_ratio=Interval(1.002, 0.999, 1.005),
    kl=Interval(0.003, 0.002, 0.004),
    kl_p99=0.05,
    same_first=Interval(0.97, 0.96, 0.98),
    positions=2000,
    texts=20,
    found=60,
    found_raw=60,
    asked=96,
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

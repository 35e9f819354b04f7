"""Codecs for stored KV are proposed where requests waited for KV from tiers, raw is slower, and the gate let them pass."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.compression import Rates
from netgain.deciding.decide.candidates import without_lossy
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.codec_asked import CodecAsked, KVMoved
from netgain.deciding.technique.codecs_told import CodecsTold, MeasuredCodec, codecs_told
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kv_compression import LosslessCompression, LossyCompression
from netgain.deciding.technique.kv_compression_switches import compression_switch
from netgain.errors import UsageError
from netgain.ledger.records import KVReuse
from netgain.ledger.stage import Stage
from tests.deciding.conftest import build_record

SLOW, FAST = 20e6, 20e9
LOADED = 10_000_000  # bytes, by two of three requests


def codec(name: str, ratio: float, state: str, rate: float = 1e9) -> MeasuredCodec:
    rates = Rates(ratio=ratio, encode_bytes_per_s=rate, decode_bytes_per_s=rate)
    return MeasuredCodec(name=name, lossy=name != "zstd", state=state, rates=rates)


ZSTD = codec("zstd", 1.5, "token-identical")
CODECS = (ZSTD, codec("int8", 2.0, "pass"), codec("int4", 4.0, "fail"), codec("cachegen", 3.0, "pass", rate=30e6))


def facts(bytes_per_s: float = SLOW, **other: object) -> Facts:
    """Every third request finds nothing; the others load as much, at that rate."""
    records = []
    for number in range(6):
        record = build_record(f"p{number}", start_s=100.0 + 10 * number, prefill_s=1.0, tokens=2)
        waited_s = LOADED / bytes_per_s
        kv = KVReuse(why="load", loaded_tokens=500, bytes=LOADED, source="disk", waited_s=waited_s)
        if number % 3 == 0:
            kv, waited_s = KVReuse(why="nothing_found"), 0.0
        server = msgspec.structs.replace(record.server, kv=kv)
        records.append(msgspec.structs.replace(record, server=server, finished_s=record.finished_s + waited_s))
    values = {
        "engine": "netgain",
        "engine_version": "0.1.0",
        "model": "m",
        "workload": "w",
        "concurrency": 1,
        "decomposition": decompose(tuple(records)),
        "records": tuple(records),
        "kv_codecs": CodecsTold(measured=CODECS),
    }
    return Facts(**{**values, **other})


def test_what_is_saved_is_the_bytes_that_need_not_move_less_decoding() -> None:
    found = LosslessCompression().predict(facts())
    assert found.setting == {"codec": "zstd"}
    assert found.saved_s[Stage.KV_LOAD] == pytest.approx(4 / 6 * (LOADED / SLOW / 3 - LOADED / 1e9))
    assert found.spent_s[Stage.UNATTRIBUTED] == pytest.approx(4 / 6 * LOADED / 1e9)
    assert found.net_s == pytest.approx(4 / 6 * (LOADED / SLOW - ZSTD.rates.seconds(LOADED, SLOW)), rel=1e-6), (
        "what the formula says"
    )
    assert not found.off_is_better
    assert found.speedup_mean > 1.0
    assert "4 of 6 recorded requests loaded 40.0 MB" in found.basis
    assert "20 MB/s" in found.basis


def test_on_a_fast_link_raw_is_predicted_to_be_sooner() -> None:
    for technique in (LosslessCompression(), LossyCompression()):
        found = technique.predict(facts(FAST))
        assert found.off_is_better
        assert found.net_s == 0.0
        assert found.speedup_e2e == 1.0


def test_the_best_is_taken_of_the_lossy_codecs_that_passed() -> None:
    found = LossyCompression().predict(facts())
    assert [one.setting["codec"] for one in found.considered] == ["int8", "cachegen"], "one is dense and slow"
    assert found.setting == {"codec": "int8"}
    quick = (*CODECS[:3], codec("cachegen", 3.0, "pass"))
    assert LossyCompression().predict(facts(kv_codecs=CodecsTold(measured=quick))).setting == {"codec": "cachegen"}
    assert any("first half the candidate loads from its tiers" in said for said in found.not_covered)


@given(st.floats(1.01, 8.0), st.floats(1e6, 1e10), st.floats(1e6, 1e10))
def test_it_never_predicts_a_loss_and_gains_only_where_the_formula_does(ratio, rate, bandwidth) -> None:
    one = codec("zstd", ratio, "token-identical", rate)
    found = LosslessCompression().predict(facts(bandwidth, kv_codecs=CodecsTold(measured=(one,))))
    gain_s = LOADED / bandwidth - one.rates.seconds(LOADED, bandwidth)
    assert found.net_s == pytest.approx(4 / 6 * max(0.0, gain_s), rel=1e-3, abs=1e-9)


def test_of_a_load_that_was_hidden_behind_the_queue_nothing_is_saved() -> None:
    asked = facts()
    hidden = [
        msgspec.structs.replace(
            one,
            server=msgspec.structs.replace(one.server, kv=msgspec.structs.replace(one.server.kv, waited_s=0.0)),
        )
        for one in asked.records
    ]
    found = LosslessCompression().predict(msgspec.structs.replace(asked, records=tuple(hidden)))
    assert found.off_is_better
    assert found.saved_s[Stage.KV_LOAD] == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"records": ()}, "no recorded request loaded KV from a tier"),
        ({"engine": "vllm"}, "which codec is tried on vllm has to be said"),
        ({"engine": "llama.cpp"}, "llama.cpp has no codec"),
        ({"engine": "vllm", "codec": CodecAsked(name="cachegen")}, "measure it with that engine and tell it"),
        ({"engine": "sglang", "codec": CodecAsked(name="fp8")}, "in which type it keeps KV"),
        ({"engine": "sglang", "codec": CodecAsked(name="fp8"), "kv_dtype": "bfloat16"}, "counters tell of no KV"),
        ({"codec": CodecAsked(name="fp8")}, "the codec fp8 was not measured on this model"),
        ({"records": (), "kv_codecs": CodecsTold(tiers=())}, "keeps no KV beyond the device"),
        ({"kv_codecs": CodecsTold()}, "was not measured: netgain cache codecs m"),
        (
            {"kv_codecs": CodecsTold(measured=(CODECS[2],))},
            r"no lossy codec passed its quality gate on this model (int4: fail)",
        ),
        ({"kv_codecs": CodecsTold(measured=(CODECS[0],))}, "no lossy codec was measured to make"),
        ({"kv_codecs": CodecsTold(measured=CODECS, used=("zstd",))}, "coded already (zstd)"),
    ],
)
def test_where_it_cannot_apply_it_says_why(change: dict[str, object], said: str) -> None:
    asked = facts(**change)
    assert said in str(LossyCompression().cannot_apply(asked))
    with pytest.raises(UsageError, match="cannot be predicted here"):
        LossyCompression().predict(asked)


def test_the_lossless_one_is_tried_unasked_and_the_lossy_one_only_when_named() -> None:
    found = {one.technique: one for one in rank(CATALOGUE, facts())}
    assert found["kv-compression"].prediction is not None
    assert found["kv-compression-lossy"].prediction is not None
    assert CATALOGUE["kv-compression"].kind == "token-identical"
    assert {"kv-compression", "kv-compression-lossy"} & set(without_lossy(CATALOGUE)) == {"kv-compression"}


def test_what_a_server_tells_is_read_and_what_cannot_be_is_nothing() -> None:
    told = {"kv_codecs_measured": msgspec.json.encode(CODECS).decode(), "kv_codecs": '["zstd"]'}
    assert codecs_told(told) == CodecsTold(measured=CODECS, used=("zstd",))
    assert codecs_told({"kv_tiers": "[]"}).tiers == ()
    assert codecs_told({}) == CodecsTold()
    for nothing in ("", "null", "no json", '{"a": 1}', '[{"name": "zstd"}]'):
        assert codecs_told(dict.fromkeys(told, nothing)) == CodecsTold()


def test_on_other_engines_what_their_counters_say_was_loaded_is_what_fewer_bytes_speed_up() -> None:
    moved = KVMoved(bytes=6 * 40e6, seconds=6 * 2.0, source="counters")
    found = LossyCompression().predict(
        facts(engine="sglang", codec=CodecAsked(name="fp8"), kv_dtype="bfloat16", kv_moved=moved)
    )
    assert found.setting == {"codec": "fp8"}
    assert found.saved_s[Stage.KV_LOAD] == pytest.approx(1.0), "half of two seconds a request"
    assert "20 MB/s" in found.basis
    told = CodecAsked(name="cachegen", ratio=4.0, encode=1e9, decode=80e6, url="redis://h:1")
    found = LossyCompression().predict(facts(engine="vllm", codec=told, kv_moved=moved))
    assert found.setting == {"codec": "cachegen", "url": "redis://h:1"}
    assert found.saved_s[Stage.KV_LOAD] == pytest.approx(1.5 - 0.5), "decoding takes from it"
    assert found.spent_s[Stage.UNATTRIBUTED] == pytest.approx(0.04)
    assert "not measured here" in found.basis
    assert "without loss" in str(LosslessCompression().cannot_apply(facts(engine="vllm", codec=told, kv_moved=moved)))


def test_the_codec_that_is_asked_for_is_the_only_one_considered() -> None:
    found = LossyCompression().predict(facts(codec=CodecAsked(name="cachegen")))
    assert [one.setting["codec"] for one in found.considered] == ["cachegen"]


def test_codecs_of_other_engines_have_the_switches_that_were_read_and_say_what_is_wrong_with_them() -> None:
    own = compression_switch("netgain", {"codec": "zstd"})
    assert own.flags == ("--set", "engine.kv.codec=zstd")
    assert own.verified
    cachegen = compression_switch("vllm", {"codec": "cachegen", "url": "redis://h:1"})
    assert '"lmcache.remote_serde": "cachegen"' in cachegen.flags[1]
    assert "deprecated" in cachegen.warns[0]
    fp8 = compression_switch("sglang", {"codec": "fp8"})
    assert fp8.flags == ("--kv-cache-dtype", "fp8_e4m3")
    assert not cachegen.verified
    assert not fp8.verified
    for engine, codec, said in (
        ("llama.cpp", "fp8", "no switch for 'llama.cpp'"),
        ("vllm", "zstd", "not zstd"),
        ("vllm", "cachegen", "give the url"),
        ("sglang", "int4", "no codec int4"),
    ):
        with pytest.raises(UsageError, match=said):
            compression_switch(engine, {"codec": codec})

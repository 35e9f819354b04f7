"""KV tiers are proposed where prompts begin alike and the device has forgotten them, and where loading beats computing."""

import re

import msgspec
import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.decide.prompts import cannot_show
from netgain.deciding.decide.settings import Settings
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.technique import tiering_link
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.tier_asked import TierAsked
from netgain.deciding.technique.tiering import BLOCK_TOKENS, KVTiering
from netgain.deciding.technique.tiering_switches import tiering_switch
from netgain.deciding.technique.transfer_rates import PASSES, DiskRates, copy_rate
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

TOKEN_S = 1e-3
PREFIX, SUFFIX = 32 * BLOCK_TOKENS, BLOCK_TOKENS
RATE = 6e9


@pytest.fixture(autouse=True)
def _one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured twice on a busy machine, it would be two rates."""
    monkeypatch.setattr(tiering_link, "copy_rate", lambda: RATE)


def test_the_rate_of_copying_is_measured() -> None:
    assert copy_rate(1 << 20, 3) > 1e6


def cost(token_s: float = TOKEN_S) -> StepCost:
    """A token costs as much wherever it stands."""
    points = [
        StepPoint(batch=1, tokens=tokens, context=context, seconds=token_s * tokens)
        for tokens in (1, 64, 256)
        for context in (0, 4096)
    ]
    return StepCost(points=tuple(points))


def facts(make_record, shared: int = PREFIX, cached: int = 0, token_bytes: int = 1024, **other: object) -> Facts:
    """Six prompts of two documents in turn, each with a question of its own; the device has room for less than one."""
    records = []
    for number in range(6):
        record = make_record(f"p{number}", start_s=100.0 + 10 * number, prefill_s=(PREFIX + SUFFIX) * TOKEN_S, tokens=2)
        own = [100_000 * (number + 1)] * (PREFIX + SUFFIX - shared)
        ids = (*([number % 2] * shared), *own)
        server = msgspec.structs.replace(
            record.server, prompt_tokens=len(ids), cached_tokens=cached if number > 1 else 0, prompt_ids=ids
        )
        records.append(msgspec.structs.replace(record, server=server))
    values = {
        "engine": "netgain",
        "engine_version": "0.1.0",
        "model": "m",
        "workload": "w",
        "concurrency": 1,
        "decomposition": decompose(tuple(records)),
        "records": tuple(records),
        "step_cost": cost(),
        "kv_tokens": PREFIX // 2,
        "kv_token_bytes": token_bytes,
    }
    return Facts(**{**values, **other})


def test_what_is_saved_is_the_prefill_of_what_was_computed_before(make_record) -> None:
    found = KVTiering().predict(facts(make_record))
    assert found.saved_s[Stage.PREFILL] == pytest.approx(4 / 6 * PREFIX * TOKEN_S)
    assert not found.off_is_better
    assert found.net_s == pytest.approx(found.saved_s[Stage.PREFILL] - sum(found.spent_s.values()))
    assert f"{4 * PREFIX} of {6 * (PREFIX + SUFFIX)} prompt tokens" in found.basis
    assert found.setting == {"tier": "dram", "gib": 0.125}


def test_loading_that_takes_longer_than_computing_is_predicted_not_to_pay(make_record) -> None:
    heavy = facts(make_record, token_bytes=int(10 * TOKEN_S * RATE))
    found = KVTiering().predict(heavy)
    assert found.saved_s[Stage.PREFILL] == 0.0
    assert found.off_is_better
    assert found.speedup_e2e <= 1.0


def test_a_tier_too_small_for_the_documents_between_two_uses_finds_nothing(make_record) -> None:
    per_token = int(2.0**30 / 4 / PREFIX)  # a document is a quarter of a GiB
    quick = facts(make_record, token_bytes=per_token, step_cost=cost(1.0))
    quick = msgspec.structs.replace(
        quick,
        records=tuple(
            msgspec.structs.replace(
                one, server=msgspec.structs.replace(one.server, ttft_stages={Stage.PREFILL: (PREFIX + SUFFIX) * 1.0})
            )
            for one in quick.records
        ),
    )
    found = KVTiering().predict(quick)
    gains = {one.setting["gib"]: one.net_s for one in found.considered}
    assert gains[0.125] < 0 < gains[1]
    assert found.setting["gib"] >= 0.5


def test_what_another_start_of_the_servers_left_behind_is_gone(make_record) -> None:
    """Under two starts of three prompts each, of two documents in turn, one prompt of each start comes back."""
    found = KVTiering().predict(facts(make_record, starts={f"p{number}": number // 3 for number in range(6)}))
    assert found.saved_s[Stage.PREFILL] == pytest.approx(2 / 6 * PREFIX * TOKEN_S)


def test_what_comes_while_the_rest_is_computed_costs_nothing(make_record) -> None:
    """Half of each prompt is shared; moving it takes a third of computing the other half, behind which most of it comes."""
    shared = 16 * BLOCK_TOKENS
    rest = PREFIX + SUFFIX - shared
    token_bytes = int(rest * TOKEN_S / 3 / shared * RATE / PASSES)
    found = KVTiering().predict(facts(make_record, shared=shared, token_bytes=token_bytes))
    moved_s = 4 / 6 * shared * token_bytes / (RATE / PASSES)
    assert found.saved_s[Stage.PREFILL] == pytest.approx(4 / 6 * shared * TOKEN_S)
    assert 0.0 < found.spent_s[Stage.KV_LOAD] < moved_s / 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shared": 0}, "begins with 16 tokens of an earlier one"),
        ({"cached": PREFIX}, "the device still had all"),
        ({"step_cost": None, "step_cost_missing": "asked too early"}, "asked too early"),
        ({"kv_tokens": None}, "does not tell how much room"),
        ({"engine": "vllm", "kv_token_bytes": None}, "does not tell what a token's KV takes: of vllm"),
        ({"engine": "sglang", "kv_tokens": None}, "the room in its /get_server_info"),
        ({"engine": "llama.cpp", "kv_token_bytes": None}, "a --model that is a GGUF file"),
        ({"records": ()}, "fewer than two"),
        ({"starts": {f"p{number}": number // 2 for number in range(6)}}, "of the same start of the servers"),
    ],
)
def test_where_it_cannot_apply_it_says_why(make_record, change, said) -> None:
    assert said in str(KVTiering().cannot_apply(facts(make_record, **change)))


def test_it_is_ranked_with_the_others_and_gets_no_hints_about_speculation(make_record) -> None:
    own = next(one for one in rank(CATALOGUE, facts(make_record)) if one.technique == "kv-tiers")
    assert own.prediction is not None
    assert own.hints == ()


def test_the_tier_that_is_asked_for_is_predicted_of_that_size_and_at_the_folders_rates(make_record) -> None:
    disk = TierAsked(kind="disk", folder="/kv", gib=2.0)
    rates = DiskRates(read=50e6, write=25e6, dropped=True)
    found = KVTiering().predict(facts(make_record, tier=disk, disk_rates=rates, token_bytes=10_000))
    assert found.setting == {"tier": "disk", "gib": 2, "folder": "/kv"}
    assert [one.setting["gib"] for one in found.considered] == [2]
    assert "50 MB/s in and 25 MB/s out" in found.basis
    assert any("the folder must have 2 GiB" in said for said in found.not_covered)
    quick = KVTiering().predict(facts(make_record, tier=disk, disk_rates=rates, token_bytes=10))
    assert quick.net_s > found.net_s, "moving more bytes takes longer"


def test_an_engine_without_a_policy_is_predicted_to_load_what_it_finds_even_where_computing_is_sooner(
    make_record,
) -> None:
    heavy = int(10 * TOKEN_S * RATE)
    assert KVTiering().predict(facts(make_record, token_bytes=heavy)).saved_s[Stage.PREFILL] == 0.0
    other = KVTiering().predict(facts(make_record, token_bytes=heavy, engine="llama.cpp", tier=TierAsked(gib=1e6)))
    assert other.saved_s[Stage.PREFILL] == pytest.approx(4 / 6 * PREFIX * TOKEN_S)
    assert other.spent_s[Stage.KV_LOAD] > other.saved_s[Stage.PREFILL]
    assert other.off_is_better


def test_each_engine_is_told_in_its_own_words() -> None:
    memory = {"tier": "dram", "gib": 4}
    disk = {"tier": "disk", "gib": 4, "folder": "/kv"}
    assert tiering_switch("netgain", disk).flags == ("--kv-tier", "disk:/kv:4GiB")
    assert '"root_dir": "/kv"' in tiering_switch("vllm", disk).flags[1]
    assert "no limit of size" in tiering_switch("vllm", disk).warns[0]
    assert tiering_switch("sglang", disk).flags[3:5] == ("--hicache-storage-backend", "file")
    assert '"file_storage_path": "/kv"' in tiering_switch("sglang", disk).flags[-1]
    lmcache = {"tier": "lmcache", "gib": 4}
    assert tiering_switch("vllm", lmcache).flags[-1] == "lmcache"
    assert tiering_switch("sglang", lmcache).flags == ("--enable-lmcache",)
    for engine in ("vllm", "sglang"):
        assert "server of its own" in tiering_switch(engine, lmcache).warns[0]
        assert not tiering_switch(engine, lmcache).verified
    for engine, tier in (("netgain", lmcache), ("llama.cpp", lmcache), ("llama.cpp", disk)):
        with pytest.raises(UsageError, match="take dram"):
            tiering_switch(engine, tier)
    assert tiering_switch("netgain", memory).flags == ("--kv-tier", "dram:4GiB")
    assert tiering_switch("vllm", memory).flags == ("--kv-offloading-size", "4", "--kv-offloading-backend", "native")
    assert tiering_switch("sglang", memory).flags == ("--enable-hierarchical-cache", "--hicache-size", "4")
    assert tiering_switch("llama.cpp", memory).flags == ("--cache-ram", "4096")
    assert tiering_switch("llama.cpp", memory).verified
    for engine in ("vllm", "sglang"):
        assert not tiering_switch(engine, memory).verified
        assert re.search(r"\d+\.\d+\.\d+", tiering_switch(engine, memory).read_from)


def test_an_engine_without_a_switch_is_refused() -> None:
    with pytest.raises(UsageError, match="no switch for 'tensorrt-llm'"):
        tiering_switch("tensorrt-llm", {"tier": "dram", "gib": 1})


def test_what_the_experiment_cannot_show_is_told_in_the_technique_s_terms(tmp_path) -> None:
    told = cannot_show(Settings(output=tmp_path, workload="shared-prefix"), 2, (), (), reuses=True)
    assert any("how much prompts share" in line for line in told)
    assert "Warm prefix caches: each start of the servers began cold." in told
    other = cannot_show(Settings(output=tmp_path, workload="edit"), 2, (), ())
    assert "Warm prefix caches: each block began cold." in other

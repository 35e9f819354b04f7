"""Requests with chunks through the engine."""

import asyncio
import socket
import time

import pytest

from netgain.errors import RequestRejected
from netgain.ledger.prometheus import Exporter
from netgain.serving.blocks.scope import Scope
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.blending.joined import Chunks
from netgain.serving.tiers.blending.selection import Deviating, First, Naive
from netgain.serving.tiers.object import unpack_head
from netgain.serving.tiers.vault_file import destroy_keys
from tests.serving.runtime.blending.test_join import FIRST, PREFIX, PROMPT, QUESTION, SECOND
from tests.waiting import PATIENCE_S

SPANS = ((len(PREFIX), len(PREFIX) + len(FIRST)), (len(PREFIX) + len(FIRST) + 2, len(PROMPT) - len(QUESTION)))
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def config(folder, *, blending=None, **settings):
    tree = {
        "model": {"source": str(folder), "kernels": "torch", "dtype": "fp32", "threads": 1},
        "cache": {"block_tokens": 8, "kv_tokens": 512},
        "blending": {"enabled": True, **(blending or {})},
    }
    return EngineConfig.model_validate(tree | settings)


def ask(llm, selection, prompt=PROMPT, spans=SPANS, sampling=GREEDY, salt=b""):
    return llm.generate([prompt], sampling, [Chunks(spans=spans, selection=selection)], salt)


@pytest.fixture
def llm(tiny):
    with LLM(config(tiny(num_hidden_layers=4).folder)) as engine:
        yield engine


def test_all_recomputed_answers_as_without_chunks(llm):
    (plain,) = llm.generate([PROMPT], GREEDY)
    (blended,) = ask(llm, Deviating(1.0))
    assert blended.output_ids == plain.output_ids
    assert not blended.trace.blending.lossy
    assert plain.trace.blending is None


def test_the_record_says_what_was_reused_and_that_it_is_lossy(llm):
    (first,) = ask(llm, Deviating(0.3))
    (second,) = ask(llm, Deviating(0.3))
    chunk_tokens = len(FIRST) + len(SECOND)
    assert first.trace.blending.computed_alone_tokens == chunk_tokens
    assert second.trace.blending.computed_alone_tokens == 0
    assert second.output_ids == first.output_ids
    assert second.trace.blending.lossy
    assert second.trace.blending.chunk_tokens == chunk_tokens
    assert chunk_tokens / 4 < second.trace.blending.recomputed_tokens < chunk_tokens


def test_without_a_calibration_nothing_is_lost(llm):
    (plain,) = llm.generate([PROMPT], GREEDY)
    (blended,) = ask(llm, None)
    assert blended.output_ids == plain.output_ids
    assert not blended.trace.blending.lossy
    assert "not been calibrated" in llm.built.info["settings_note"]


def test_the_first_tokens_of_each_chunk_may_be_what_a_server_computes_anew(tiny):
    with LLM(config(tiny(num_hidden_layers=4).folder, blending={"first": 3})) as served:
        (blended,) = ask(served, None)
        (asked,) = ask(served, First(3))
        assert blended.trace.blending.selection == "first 3"
        assert blended.trace.blending.lossy
        assert blended.output_ids == asked.output_ids
        assert "chunks are joined first 3, as set (lossy)" in served.built.info["settings_note"]
        assert served.built.info["blending"]["ratio"] is None
    with pytest.raises(ValueError, match="give one of them"):
        config(tiny().folder, blending={"first": 3, "ratio": 0.3})


@pytest.mark.parametrize("selection", [Naive(), First(3), Deviating(0.4)], ids=str)
def test_blended_kv_is_never_found_by_a_request_without_chunks(tiny, llm, selection):
    """Nor does it matter what was computed before: the same request has the same answer."""
    (blended,) = ask(llm, selection)
    (plain,) = llm.generate([PROMPT], GREEDY)
    (again,) = ask(llm, selection)
    with LLM(config(tiny(num_hidden_layers=4).folder)) as fresh:
        assert fresh.generate([PROMPT], GREEDY)[0].output_ids == plain.output_ids
    assert plain.trace.cached_tokens <= SPANS[0][0]
    assert again.output_ids == blended.output_ids


def test_neighbours_and_lack_of_room_change_no_answer(tiny):
    """Whatever shares the batch, and however often a request loses its blocks."""
    folder = tiny(num_hidden_layers=4).folder
    longer = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    with LLM(config(folder)) as alone:
        (expected,) = ask(alone, Deviating(0.4), sampling=longer)
        (plain,) = alone.generate([PROMPT], longer)
    tight = {"cache": {"block_tokens": 8, "kv_tokens": 136}, "scheduler": {"max_batch_tokens": 32, "max_running": 4}}
    with LLM(config(folder, **tight)) as crowded:
        chunks = Chunks(spans=SPANS, selection=Deviating(0.4))
        answers = crowded.generate([PROMPT] * 6, longer, [chunks, None] * 3)
        crowded.built.engine.check()
    assert [answer.output_ids for answer in answers] == [expected.output_ids, plain.output_ids] * 3
    assert sum(answer.trace.preemptions for answer in answers) > 0


def in_tiers(folder, *tiers, **kv):
    return config(folder, kv={"tiers": tiers, "close_s": 10, **kv})


def alone(answer):
    return answer.trace.blending.computed_alone_tokens


@pytest.mark.parametrize("vault", [False, True])
def test_chunks_outlive_the_process_in_the_tiers_of_prefixes(tiny, tmp_path, vault):
    """Sealed with the tenant's key like these, where there is a vault."""
    folder = tiny(num_hidden_layers=4).folder
    kv = {"vault": str(tmp_path / "keys")} if vault else {}
    tiers = ("dram:8MiB", f"disk:{tmp_path / 'kv'}:16MiB?codec=zstd&codec_when=always")
    with LLM(in_tiers(folder, *tiers, **kv)) as writer:
        (first,) = ask(writer, Naive())
    with LLM(in_tiers(folder, *tiers, **kv)) as reader:
        (second,) = ask(reader, Naive())
        told = reader.built.engine.tier_counters()
    assert alone(first) == len(FIRST) + len(SECOND)
    assert alone(second) == 0
    assert second.trace.blending.chunks_found == 2
    assert second.output_ids == first.output_ids
    assert told["blend_chunks_fetched"] == told["blend_chunks_found"] == 2
    heads = [unpack_head(file.read_bytes()).stored for file in (tmp_path / "kv").rglob("*.kv")]
    chunks = [head for head in heads if head.part.plane == "chunk"]
    assert {head.codec for head in chunks} == {"zstd.1"}
    assert {head.seal is not None for head in heads} == {vault}
    assert sorted(head.tokens for head in chunks) == sorted((len(FIRST), len(SECOND)))


@pytest.mark.parametrize("vault", [False, True])
def test_tenants_share_no_chunk(tiny, tmp_path, vault):
    """Neither in memory nor in tiers; another tenant's costs what was never stored."""
    kv = {"vault": str(tmp_path / "keys")} if vault else {}
    with LLM(in_tiers(tiny(num_hidden_layers=4).folder, f"disk:{tmp_path / 'kv'}:16MiB", **kv)) as llm:
        salts = [Scope(tenant=name).salt for name in ("acme", "other", "acme")]
        answers = [ask(llm, Naive(), salt=salt)[0] for salt in salts]
    assert [alone(answer) for answer in answers] == [len(FIRST) + len(SECOND)] * 2 + [0]
    assert len({answer.output_ids for answer in answers}) == 1


def test_purging_a_tenant_takes_its_chunks_too(tiny, tmp_path):
    folder, vault = tiny(num_hidden_layers=4).folder, tmp_path / "keys"
    with LLM(in_tiers(folder, f"disk:{tmp_path / 'kv'}:16MiB", vault=str(vault))) as llm:
        (first,) = ask(llm, Naive(), salt=Scope(tenant="acme").salt)
        destroy_keys(vault, frozenset({"acme"}), 0)
        (again,) = ask(llm, Naive(), salt=Scope(tenant="acme").salt)
    assert alone(again) == alone(first) > 0
    assert again.output_ids == first.output_ids


def test_purging_a_tenant_leaves_the_chunks_of_others_in_memory(tiny):
    acme, other = (Scope(tenant=name).salt for name in ("acme", "other"))
    with LLM(config(tiny(num_hidden_layers=4).folder)) as llm:
        computed = {salt: ask(llm, Naive(), salt=salt)[0] for salt in (acme, other, b"")}
        held_bytes, told = llm.built.engine.tier_counters()["blend_memory_bytes"], []
        llm.built.purging.purge(frozenset({"acme"}), told.append)
        assert llm.built.engine.tier_counters()["blend_memory_bytes"] == held_bytes * 2 / 3
        again = {salt: ask(llm, Naive(), salt=salt)[0] for salt in (acme, other, b"")}
        llm.built.purging.purge(frozenset({None}), told.append)
        (others,) = ask(llm, Naive(), salt=other)
        llm.built.purging.purge(None, told.append)
        assert llm.built.engine.tier_counters()["blend_memory_bytes"] == 0
    assert [one.chunks for one in told] == [2, 2, 4]
    assert [alone(again[salt]) for salt in (acme, other, b"")] == [alone(computed[acme]), 0, 0]
    assert alone(computed[acme]) > 0 == alone(others)
    assert {answer.output_ids for answer in (*computed.values(), *again.values())} == {others.output_ids}


def test_damaged_chunks_are_computed_anew(tiny, tmp_path):
    folder = tiny(num_hidden_layers=4).folder
    tier = f"disk:{tmp_path / 'chunks'}:16MiB"
    with LLM(in_tiers(folder, tier)) as writer:
        (first,) = ask(writer, Naive())
    for file in (tmp_path / "chunks").rglob("*.kv"):
        data = bytearray(file.read_bytes())
        data[-5] ^= 4
        file.write_bytes(data)
    with LLM(in_tiers(folder, tier)) as reader:
        (second,) = ask(reader, Naive())
    assert alone(second) == alone(first)
    assert second.output_ids == first.output_ids


def test_policy_never_stores_chunks_and_takes_none(tiny, tmp_path):
    folder, tier = tiny(num_hidden_layers=4).folder, f"disk:{tmp_path / 'chunks'}:16MiB"
    for policy, computed in (("never", True), ("never", True), ("always", False)):
        with LLM(in_tiers(folder, tier, policy=policy)) as llm:
            (answer,) = ask(llm, Naive())
        assert bool(alone(answer)) == computed


def test_a_chunk_that_is_sooner_computed_is_left_in_its_tier(tiny, tmp_path):
    """The record has the reason, both predictions and the truth; the answer is the same."""
    folder, tier = tiny(num_hidden_layers=4).folder, f"disk:{tmp_path / 'chunks'}:16MiB"
    others = [tuple(5 + number for number in PROMPT), tuple(7 + number for number in PROMPT)]
    with LLM(in_tiers(folder, tier)) as writer:
        expected = [ask(writer, Naive(), prompt)[0].output_ids for prompt in others]
    with LLM(in_tiers(folder, f"{tier}?bandwidth=40KB/s")) as reader:
        ask(reader, Naive())  # what computing a chunk takes
        (learnt,) = ask(reader, Naive(), others[0])
        until_s = time.monotonic() + PATIENCE_S
        while "tier_load_bytes_per_s/disk" not in reader.built.engine.tier_counters():
            assert time.monotonic() < until_s
            time.sleep(0.05)
        (left,) = ask(reader, Naive(), others[1])
        told = reader.built.engine.tier_counters()
    assert [learnt.output_ids, left.output_ids] == expected
    assert learnt.trace.blending.fetch == "learn"
    record = left.trace.blending
    assert (record.fetch, record.chunks_wanted, record.chunks_fetched) == ("compute", 0, 0)
    assert record.computed_alone_tokens == len(FIRST) + len(SECOND)
    assert record.fetch_warm_s == record.fetch_full_s > 0
    assert record.fetch_s > 0
    assert record.alone_s > 0
    assert told["blend_chunks_left"] == 2


def test_what_is_purged_while_it_runs_leaves_no_chunk_behind(tiny, tmp_path):
    """It is answered all the same, in pieces of which some were computed before and some after."""
    place, told, outputs = tmp_path / "kv", [], []
    kv = {"tiers": (f"disk:{place}:16MiB",), "close_s": 10}
    with LLM(config(tiny(num_hidden_layers=4).folder, kv=kv, scheduler={"max_batch_tokens": 32})) as llm:
        one, chunks = llm.built.engine, Chunks(spans=SPANS, selection=Naive())
        one.submit(Request(id="runs", prompt=PROMPT, sampling=GREEDY, salt=Scope(tenant="acme").salt, chunks=chunks))
        asyncio.run(one.step())
        llm.built.purging.purge(frozenset({"acme"}), told.append)
        until_s = time.monotonic() + PATIENCE_S
        while not told:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        while one.has_work:
            outputs += asyncio.run(one.step())
        memory_bytes = one.tier_counters()["blend_memory_bytes"]
    assert outputs[-1].finish_reason == "length"
    assert memory_bytes == 0
    assert not list(place.rglob("*.kv"))


def test_a_tier_that_hangs_delays_a_prompt_with_chunks_within_a_bound(tiny):
    silent = socket.create_server(("127.0.0.1", 0))
    tier = f"valkey://127.0.0.1:{silent.getsockname()[1]}/0"
    with silent, LLM(in_tiers(tiny(num_hidden_layers=4).folder, tier, timeout_s=0.2)) as llm:
        began_s = time.monotonic()
        (answer,) = ask(llm, Naive())
        assert time.monotonic() - began_s < 60
    assert alone(answer) == len(FIRST) + len(SECOND)


def test_metrics_tell_what_was_found_reused_and_moved(tiny):
    exporter = Exporter()
    with LLM(config(tiny(num_hidden_layers=4).folder)) as llm:
        (first,), (second,) = ask(llm, Deviating(0.3)), ask(llm, Deviating(0.3))
        ask(llm, Deviating(1.0))
        llm.generate([PROMPT], GREEDY)
        exporter.engine(llm.built.engine.tier_counters())
    value = {
        sample.name.removeprefix("netgain_blend_"): sample.value
        for family in exporter.registry.collect()
        for sample in family.samples
        if family.name.startswith("netgain_blend_") and "replica" in sample.labels
    }
    tokens = len(FIRST) + len(SECOND)
    assert (value["requests_total"], value["exact_requests_total"]) == (3, 1)
    assert (value["chunks_missed_total"], value["chunks_found_total"]) == (2, 2)
    assert (value["chunk_tokens_total"], value["alone_tokens_total"]) == (3 * tokens, tokens)
    anew = first.trace.blending.recomputed_tokens + second.trace.blending.recomputed_tokens + tokens
    assert value["recomputed_tokens_total"] == pytest.approx(anew)
    assert 0 < value["rotation_seconds_total"] < value["join_seconds_total"] + value["alone_seconds_total"]
    assert value["rotation_seconds_total"] >= first.trace.blending.rotation_s > 0
    assert value["memory_bytes"] > 0


LONG = tuple((7 * place) % 250 for place in range(1300))
LONG_SPANS = ((100, 480), (500, 1210), (1220, 1290))


@pytest.fixture
def long(tiny):
    settings = {"cache": {"block_tokens": 8, "kv_tokens": 4096}}
    with LLM(config(tiny(num_hidden_layers=6, max_position_embeddings=2048).folder, **settings)) as engine:
        yield engine


def test_a_long_prompt_is_computed_in_pieces_and_nothing_is_lost(long):
    (plain,) = long.generate([LONG], GREEDY)
    (exact,) = ask(long, Deviating(1.0), LONG, LONG_SPANS)
    assert exact.output_ids == plain.output_ids
    assert exact.trace.blending.recomputed_tokens == sum(end - first for first, end in LONG_SPANS)


@pytest.mark.parametrize("selection", [Naive(), First(3), Deviating(0.3)], ids=str)
def test_an_answer_over_several_pieces_depends_on_its_request_alone(long, selection):
    """Not on a prefix in the cache, requests in between, nor whether chunks were known or computed piece by piece."""
    (first,) = ask(long, selection, LONG, LONG_SPANS)
    chunks = Chunks(spans=LONG_SPANS, selection=selection)
    again, _, last = long.generate([LONG, PROMPT, LONG], GREEDY, [chunks, None, chunks])
    assert again.output_ids == last.output_ids == first.output_ids
    assert first.trace.cached_tokens < again.trace.cached_tokens <= LONG_SPANS[0][0]
    told, later = first.trace.blending, again.trace.blending
    tokens = sum(end - begin for begin, end in LONG_SPANS)
    assert told.chunk_tokens == later.chunk_tokens == told.computed_alone_tokens == tokens
    assert (told.chunks, later.chunks_found, later.computed_alone_tokens) == (3, 3, 0)
    assert later.recomputed_tokens == told.recomputed_tokens < tokens / 2


def test_a_long_prompt_that_loses_its_room_is_counted_once(tiny):
    longer = SamplingParams(max_tokens=120, temperature=0.0, ignore_eos=True)
    chunks = Chunks(spans=LONG_SPANS, selection=Deviating(0.3))
    folder = tiny(num_hidden_layers=4, max_position_embeddings=2048).folder
    tight = {"cache": {"block_tokens": 8, "kv_tokens": 2640}, "scheduler": {"max_batch_tokens": 64, "max_running": 4}}
    with LLM(config(folder, **tight)) as llm:
        answers = llm.generate([LONG] * 3, longer, [chunks] * 3)
        llm.built.engine.check()
    assert sum(answer.trace.preemptions for answer in answers) > 0
    assert len({answer.output_ids for answer in answers}) == 1
    assert {answer.trace.blending.chunk_tokens for answer in answers} == {sum(b - a for a, b in LONG_SPANS)}


def test_what_cannot_be_is_refused(llm, tiny):
    with pytest.raises(RequestRejected, match="does not lie"):
        ask(llm, Naive(), spans=((0, 500),))
    with pytest.raises(RequestRejected, match="no chunk is given"):
        ask(llm, Naive(), spans=())
    scored = SamplingParams(max_tokens=1, prompt_logprobs=1)
    with pytest.raises(RequestRejected, match="log-probabilities of a prompt"):
        ask(llm, Naive(), sampling=scored)
    with (
        LLM(config(tiny().folder, blending={"enabled": False})) as without,
        pytest.raises(RequestRejected, match=r"engine\.blending\.enabled"),
    ):
        ask(without, Naive())

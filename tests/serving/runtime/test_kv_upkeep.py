"""A real engine over tiers that choose what they take, that are filled by eviction, or that outlive it, and over files that rot:
every answer is the one that is computed without tiers."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from netgain.errors import UsageError
from netgain.serving.blocks.scope import Scope
from netgain.serving.engine.kv_load import Load
from netgain.serving.engine.purging import EnginePurged
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.shared_memory import folder_of
from netgain.serving.tiers.vault_file import read_vault
from tests.serving.runtime.test_kv_tiers import (
    PROMPTS,
    SAMPLING,
    WRITER,
    answers,
    engine,
    expected,
    folder,
    loaded,
    settings,
    settle,
)
from tests.waiting import PATIENCE_S

__all__ = ["expected", "folder"]

BLOCKS = 10  # of each of PROMPTS; all but the last are the same
KEPT = (len(PROMPTS) - 1) + BLOCKS  # different ones among them


def counted(llm: LLM, name: str) -> float:
    return llm.built.engine.tier_counters()[name]


@pytest.fixture
def shared() -> Iterator[str]:
    """A name of shared memory that is empty, and is again afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    shutil.rmtree(folder_of(name), ignore_errors=True)


def test_a_tier_that_waits_for_a_second_use_stores_what_comes_again(
    folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    with engine(folder, f"disk:{tmp_path / 'kv'}:16MiB?admit=second-use") as llm:
        llm.generate(PROMPTS[:1], SAMPLING)
        settle(llm)
        assert counted(llm, "tier_stored_bytes/disk") == 0
        assert counted(llm, "tier_not_admitted/disk") == BLOCKS + 1, "of the prompt, and of the answer"
        assert answers(llm) == expected, "computed again: nothing was there"
        assert loaded(llm) == 0
        settle(llm)
        files = len(list((tmp_path / "kv").rglob("*.kv")))
        assert BLOCKS <= files < KEPT + len(PROMPTS), "what was used twice, and not the ends that differ"
        assert answers(llm) == expected
        assert loaded(llm) >= 144


def test_use_on_the_device_counts_as_use(folder: Path, tmp_path: Path) -> None:
    with engine(folder, f"disk:{tmp_path / 'kv'}:16MiB?admit=second-use") as llm:
        first = llm.generate(PROMPTS[:1], SAMPLING)
        again = llm.generate(PROMPTS[:1], SAMPLING)  # all but its end is on the device
        assert again[0].output_ids == first[0].output_ids
        settle(llm)
        assert len(list((tmp_path / "kv").rglob("*.kv"))) >= BLOCKS
        for _ in range(3):
            llm.generate(PROMPTS[:1], SAMPLING)
        stored = counted(llm, "tier_stored_bytes/disk")
        settle(llm)
        llm.generate(PROMPTS[:1], SAMPLING)
        assert loaded(llm) >= 144
        assert counted(llm, "tier_stored_bytes/disk") <= stored * 1.2, "once"


def test_a_tier_that_is_written_back_has_at_the_end_what_memory_had(
    folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    tiers = ("dram:16MiB", f"disk:{tmp_path / 'kv'}:16MiB?write=back")
    with engine(folder, *tiers, close_s=20) as llm:
        assert answers(llm) == expected
        settle(llm)
        assert counted(llm, "tier_stored_bytes/disk") == 0
        assert not list((tmp_path / "kv").rglob("*.kv"))
    with engine(folder, *tiers, close_s=20) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        assert counted(llm, "tier_promoted/disk") >= BLOCKS - 1


def test_a_small_memory_gives_up_to_a_disk_and_gets_it_back(
    folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    """What has gone down is in another form there, and every answer stays the same."""
    tiers = ("dram:20KiB", f"disk:{tmp_path / 'kv'}:16MiB?write=back&codec=zstd&codec_when=always")
    with engine(folder, *tiers) as llm:
        for _ in range(3):
            assert answers(llm) == expected
            settle(llm)
        counters = llm.built.engine.tier_counters()
        assert counters["tier_demoted/dram"] > KEPT // 2
        assert counters["tier_promoted/disk"] > 0
        assert counters["tier_refused/disk"] == counters["tier_refused/dram"] == 0
        assert counters["codec_stored/disk/zstd"] > 0


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        (["disk:{}:1MiB?write=back"], "stands below no tier"),
        (["valkey://h:1/0", "disk:{}:1MiB?write=back"], "below valkey tier that netgain evicts from"),
        (["shm:a:9000TiB"], "the shm tiers may take"),
        (["dram:8000TiB", "shm:a:9000TiB"], "the dram and shm tiers may take"),
        (["shm:a:1MiB", "shm:a:2MiB"], "is named as two KV tiers"),
    ],
)
def test_tiers_that_cannot_be_meant_are_one_clear_error(
    folder: Path, tmp_path: Path, tiers: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        engine(folder, *(tier.format(tmp_path / "kv") for tier in tiers))


def test_memory_outlives_a_killed_process(folder: Path, shared: str, expected: list[tuple[int, ...]]) -> None:
    tier = f"shm:{shared}:64MiB"
    told = json.dumps([settings(folder, tier), PROMPTS, msgspec.to_builtins(SAMPLING)])
    writer = subprocess.Popen([sys.executable, "-c", WRITER, told], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(3):
        assert writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait(30)
    writer.stdout.close()
    place = folder_of(shared)
    unfinished = place / "ab" / f"{'ab' * 32}.{writer.pid}-0.tmp"  # as a kill in the middle of a write leaves it
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(b"half")
    with engine(folder, tier) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        assert counted(llm, "tier_refused/shm") == 0
        assert not unfinished.exists(), "nobody holds its lock any more"


def rot(place: Path, draw: random.Random, most: int) -> dict[Path, bytes]:
    """Flip one bit in each of at most `most` files; what is in them now."""
    spoilt = {}
    files = sorted(place.rglob("*.kv"))
    for file in draw.sample(files, min(most, len(files))):
        data = bytearray(file.read_bytes())
        bit = draw.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        spoilt[file] = bytes(data)
    return spoilt


def flips(folder: Path, place: Path, wanted: int, groups: int = 1) -> None:
    """So many single bits flipped under a running engine, in rounds; each is found and removed, and no answer changes. With more
    than one group of layers, blocks come by these."""
    draw = random.Random(7)
    prompts = [tuple(draw.randrange(250) for _ in range(250)) for _ in range(16)]
    short = SamplingParams(max_tokens=4, temperature=0.7, seed=3, ignore_eos=True)
    flipped = 0
    with engine(folder, f"disk:{place}:64MiB?durable=false", layer_groups=groups) as llm:
        by_layers = 0
        if groups > 1:  # whatever is predicted of it

            def all_of_it(load: Load, first: int) -> int:
                nonlocal by_layers
                by_layers += 1
                return load.end - first

            tiering = llm.built.engine._tiering
            assert tiering is not None
            assert len(tiering._overlaps._starts) == groups
            tiering._choice.tail_blocks = all_of_it  # type: ignore[method-assign]

        def ask() -> list[tuple[int, ...]]:
            completions = llm.generate(prompts, short)
            assert [one.error for one in completions] == [None] * len(prompts)
            settle(llm)
            return [one.output_ids for one in completions]

        right = ask()
        while flipped < wanted:
            spoilt = rot(place, draw, wanted - flipped)
            flipped += len(spoilt)
            began_s = time.monotonic()
            for _ in range(4):  # of a prefix only what comes before the first damage is read
                assert ask() == right
                left = [file for file, data in spoilt.items() if file.exists() and file.read_bytes() == data]
                if not left:
                    break
            assert not left
            assert time.monotonic() - began_s < 60, "nothing waits for what is damaged"
        llm.built.engine.check()
        assert counted(llm, "tier_refused/disk") == flipped == wanted
        assert loaded(llm) > 0
        assert (by_layers > 0) == (groups > 1)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_thousand_flipped_bits_change_no_token(folder: Path, tmp_path: Path, groups: int) -> None:
    flips(folder, tmp_path / "kv", 500, groups)


def stored(llm: LLM) -> None:
    """Everything that is to be stored is; the device keeps what it has."""
    until_s = time.monotonic() + PATIENCE_S
    while any(value for name, value in llm.built.engine.tier_counters().items() if "tier_queued_bytes" in name):
        assert time.monotonic() < until_s
        time.sleep(0.005)


def purge(llm: LLM, *tenants: str) -> EnginePurged:
    """What the engine says that it forgot."""
    told: list[EnginePurged] = []
    llm.built.purging.purge(frozenset(tenants), told.append)
    until_s = time.monotonic() + PATIENCE_S
    while not told:
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return told[0]


def cached(llm: LLM, tenant: str) -> int:
    """Tokens of the first prompt that did not have to be computed for this tenant, wherever they were."""
    one = llm.built.engine
    one.submit(
        Request(id=f"{tenant}-{time.monotonic()}", prompt=PROMPTS[0], sampling=SAMPLING, salt=Scope(tenant).salt)
    )
    outputs = []
    while one.has_work:
        outputs += asyncio.run(one.step())
    trace = outputs[-1].trace
    assert trace is not None
    return trace.cached_tokens


@pytest.mark.parametrize("sealed", [False, True])
def test_a_purged_tenant_is_found_nowhere_and_the_others_are(folder: Path, tmp_path: Path, sealed: bool) -> None:
    if sealed:
        pytest.importorskip("cryptography")
    place, vault = tmp_path / "kv", tmp_path / "vault.json"
    kv = {"vault": str(vault)} if sealed else {}
    with engine(folder, "dram:16MiB", f"disk:{place}:16MiB", **kv) as llm:
        one = llm.built.engine
        for tenant in ("acme", "other"):
            assert cached(llm, tenant) == 0
            assert cached(llm, tenant) >= 144, "on the device"
        stored(llm)
        files = len(list(place.rglob("*.kv")))
        purged = purge(llm, "acme")
        one.check()
        one.scheduler.pool.check()
        assert purged.device_blocks >= BLOCKS
        assert purged.store is not None
        assert purged.store.destroyed_keys == sealed
        assert purged.store.failed is None
        for tier in purged.store.tiers.values():
            assert (tier.failed, tier.unknown) == (None, 0)
            assert tier.removed >= BLOCKS
        assert len(list(place.rglob("*.kv"))) <= files // 2 + 1
        if sealed:
            assert [key.tenant for key in read_vault(vault).destroyed] == ["acme"]
        assert cached(llm, "other") >= 144
        assert cached(llm, "acme") == 0
        one.scheduler.pool.clear_cache()
        assert cached(llm, "other") >= 144, "from tiers"


def test_what_runs_while_its_tenant_is_purged_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "kv"
    with engine(folder, "dram:16MiB", f"disk:{place}:16MiB") as llm:
        one = llm.built.engine
        long = SamplingParams(max_tokens=100, seed=3, ignore_eos=True)
        one.submit(Request(id="runs", prompt=PROMPTS[0], sampling=long, salt=Scope("acme").salt))
        for _ in range(20):
            asyncio.run(one.step())
        assert purge(llm, "acme").device_blocks >= BLOCKS
        outputs = []
        while one.has_work:
            outputs += asyncio.run(one.step())
        assert outputs[-1].finish_reason == "length", "it is answered all the same"
        settle(llm)
        assert not list(place.rglob("*.kv"))
        one.scheduler.pool.check()
        assert cached(llm, "acme") == 0

"""A real engine over real tiers with real faults: killed writers, spoilt files, full and read-only folders, dead servers. Every
answer is the one that is computed without tiers, in bounded time, and the engine stays usable."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from netgain.errors import UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.build_tiers import build_tiers
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.kv_settings import KVTierSettings
from netgain.serving.runtime.llm import LLM
from netgain.serving.runtime.tier_specs import parse_tier
from netgain.serving.tiers.object import Expected, Shape
from netgain.serving.tiers.tier import TierOptions
from tests.serving.model.conftest import byte_tokenizer
from tests.serving.tiers.servers import s3, valkey
from tests.waiting import PATIENCE_S

OUTPUT = 12
SAMPLING = SamplingParams(max_tokens=OUTPUT, temperature=0.7, seed=3, ignore_eos=True)
SHARED = [(7 * place) % 250 for place in range(150)]
PROMPTS = tuple((*SHARED, *(place * (1 + number) % 250 for place in range(20))) for number in range(6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, small and quick to load."""
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
    )
    place = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(place)
    byte_tokenizer().save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return place


def settings(folder: Path, *tiers: str, kv_dtype: str = "auto", **kv: object) -> dict[str, object]:
    return {
        "model": {"source": str(folder), "threads": 1, "kv_dtype": kv_dtype},
        "cache": {"kv_tokens": 1024},
        "kv": {"tiers": tiers, "policy": "always", **kv},
    }


def engine(folder: Path, *tiers: str, kv_dtype: str = "auto", **kv: object) -> LLM:
    return LLM(EngineConfig.model_validate(settings(folder, *tiers, kv_dtype=kv_dtype, **kv)))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[tuple[int, ...]]:
    """What the model says without any tier."""
    return plain(folder)


def plain(folder: Path, kv_dtype: str = "auto") -> list[tuple[int, ...]]:
    with engine(folder, kv_dtype=kv_dtype) as llm:
        return [completion.output_ids for completion in llm.generate(PROMPTS, SAMPLING)]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    completions = llm.generate(PROMPTS, SAMPLING)
    assert all(completion.error is None for completion in completions)
    llm.built.engine.check()
    return [completion.output_ids for completion in completions]


def settle(llm: LLM) -> None:
    """Everything published is stored, as far as the tiers take it, and nothing is left on the device."""
    one = llm.built.engine
    while one.has_work:
        asyncio.run(one.step())
    until_s = time.monotonic() + PATIENCE_S
    while any(value for name, value in one.tier_counters().items() if name.startswith("tier_queued_bytes")):
        assert time.monotonic() < until_s
        time.sleep(0.005)
    one.scheduler.pool.clear_cache()


def loaded(llm: LLM) -> float:
    return llm.built.engine.tier_counters().get("kv_loaded_tokens", 0.0)


def used_again(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    """Wait until a tier gives something, as it does once a probe found it well; the device is empty afterwards."""
    before, until_s = loaded(llm), time.monotonic() + 20
    while loaded(llm) == before:
        assert time.monotonic() < until_s
        time.sleep(0.1)
        settle(llm)
        assert answers(llm) == expected
    settle(llm)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp32", "int8"])
def test_every_kv_type_comes_back_as_it_was(folder: Path, tmp_path: Path, kv_dtype: str) -> None:
    with engine(folder, "dram:16MiB", f"disk:{tmp_path / 'kv'}:16MiB", kv_dtype=kv_dtype) as llm:
        first = answers(llm)
        settle(llm)
        assert answers(llm) == first == plain(folder, kv_dtype)
        assert loaded(llm) > 140


# imports nothing of the tests, whose libraries take long
WRITER = """
import json, sys
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
tree, prompts, sampling = json.loads(sys.argv[1])
llm = LLM(EngineConfig.model_validate(tree))
number = 0
while True:
    llm.generate([(*prompt, number % 250) for prompt in prompts], SamplingParams(**sampling))
    llm.built.engine.scheduler.pool.clear_cache()
    print(number, flush=True)
    number += 1
"""


def test_another_process_loads_what_a_killed_one_stored(
    folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    """LMCache/LMCache#2273: the files of a stopped server were neither reused nor removed."""
    tier = f"disk:{tmp_path / 'kv'}:64MiB"
    told = json.dumps([settings(folder, tier), PROMPTS, msgspec.to_builtins(SAMPLING)])
    writer = subprocess.Popen([sys.executable, "-c", WRITER, told], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(3):
        assert writer.stdout.readline()
    until_s = time.monotonic() + PATIENCE_S
    while len(list((tmp_path / "kv").rglob("*.kv"))) < 16:  # of the first prompts, in order: what they share is there
        assert time.monotonic() < until_s
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait(30)
    writer.stdout.close()
    with engine(folder, tier) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        assert llm.built.engine.tier_counters()["tier_refused/disk"] == 0


def test_sealed_kv_is_opened_with_the_vault_alone(
    folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    tier, vault = f"disk:{tmp_path / 'kv'}:64MiB", str(tmp_path / "vault.json")
    with engine(folder, tier, vault=vault) as llm:
        assert answers(llm) == expected
    with engine(folder, tier, vault=vault) as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
    for other in (None, str(tmp_path / "other.json")):
        with engine(folder, tier, vault=other) as llm:
            assert answers(llm) == expected
            assert loaded(llm) == 0


def test_spoilt_files_are_never_used(folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]) -> None:
    """Bits flipped, files cut, and files of other blocks under a block's name, which LMCache/LMCache#4385 served."""
    place = tmp_path / "kv"
    draw = random.Random(5)
    with engine(folder, f"disk:{place}:64MiB") as llm:
        assert answers(llm) == expected
        for _ in range(6):
            settle(llm)
            for file in sorted(place.rglob("*.kv")):
                data = bytearray(file.read_bytes())
                match draw.randrange(4):
                    case 0:
                        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                    case 1:
                        del data[draw.randrange(len(data)) :]
                    case 2:
                        data = bytearray(draw.choice(sorted(place.rglob("*.kv"))).read_bytes())
                file.write_bytes(data)
            assert answers(llm) == expected
        counters = llm.built.engine.tier_counters()
        assert counters["tier_refused/disk"] > 5
        assert counters["kv_loads_failed"] > 0


def test_a_folder_that_vanishes_is_computed(folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]) -> None:
    """LMCache/LMCache#4546: files deleted by somebody else stopped all further storing."""
    place = tmp_path / "kv"
    with engine(folder, f"disk:{place}:64MiB") as llm:
        answers(llm)
        settle(llm)
        shutil.rmtree(place)
        assert answers(llm) == expected
        settle(llm)
        assert answers(llm) == expected


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skips where none may be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_costs_no_answer(folder: Path, small_file_system: Path, expected: list[tuple[int, ...]]) -> None:
    with engine(folder, f"disk:{small_file_system}:64MiB") as llm:
        assert answers(llm) == expected
        settle(llm)
        assert answers(llm) == expected
        assert llm.built.engine.tier_counters()["tier_unwritten/disk"] > 0


def test_a_read_only_folder_is_read(folder: Path, small_file_system: Path, expected: list[tuple[int, ...]]) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", small_file_system], check=True)
    with engine(folder, f"disk:{small_file_system}:64MiB") as llm:
        answers(llm)
        settle(llm)
    subprocess.run(["mount", "-o", "remount,ro", small_file_system], check=True)
    with engine(folder, f"disk:{small_file_system}:64MiB") as llm:
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        llm.generate([[9] * 40], SAMPLING)
        settle(llm)
        assert answers(llm) == expected
        assert llm.built.engine.tier_counters()["tier_unwritten/disk"] > 0


def test_a_server_that_is_killed_in_the_middle_costs_no_answer(folder: Path, expected: list[tuple[int, ...]]) -> None:
    """kvcache-ai/Mooncake#935: killing the store in the middle garbled answers; kvcache-ai/Mooncake#4003: one lost connection
    disabled it for good."""
    pytest.importorskip("redis")
    with valkey() as server, engine(folder, f"valkey://127.0.0.1:{server.port}/0", timeout_s=0.3) as llm:
        assert answers(llm) == expected
        settle(llm)
        assert answers(llm) == expected
        assert loaded(llm) >= 144
        for harm, mend in ((server.kill, server.restart), (server.hang, server.go_on)):
            used_again(llm, expected)
            opened = llm.built.engine.tier_counters()["tier_breaker_opened/valkey"]
            killer = threading.Timer(0.01, harm)
            killer.start()
            began_s = time.monotonic()
            assert answers(llm) == expected
            killer.join()
            llm.built.engine.scheduler.pool.clear_cache()  # whatever was loaded in time is asked for again
            assert answers(llm) == expected
            assert time.monotonic() - began_s < 90
            assert llm.built.engine.tier_counters()["tier_breaker_opened/valkey"] > opened
            mend()
        used_again(llm, expected)


def test_a_server_that_is_not_there_at_the_start_is_no_error(
    folder: Path, expected: list[tuple[int, ...]], free_port: int
) -> None:
    pytest.importorskip("redis")
    with engine(folder, f"valkey://127.0.0.1:{free_port}/0") as llm:
        assert answers(llm) == expected


def test_object_storage(folder: Path, expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3("netgain") as server:
        tier = f"s3://netgain/kv?endpoint=http://127.0.0.1:{server.port}&region=us-east-1"
        with engine(folder, tier, lookup_s=20) as llm:
            assert answers(llm) == expected
            settle(llm)
            assert answers(llm) == expected
            assert loaded(llm) >= 144
            settle(llm)
            server.kill()
            assert answers(llm) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ram:2GiB", "is no KV tier"),
        ("dram", "is no size"),
        ("dram:2 giraffes", "is no size"),
        ("disk:10GiB", "how much the folder may hold"),
        ("disk:/kv:many", "is no size"),
        ("valkey:6379", "names no server"),
        ("s3://", "names no bucket"),
        ("dram:1GiB?speed=3", "has no option 'speed'"),
        ("dram:1GiB?latency=soon", "is no time"),
        ("disk:/kv:1GiB?eviction=fifo", "eviction is lru or arc"),
        ("disk:/kv:1GiB?codec=zst", "did you mean 'zstd'"),
        ("disk:/kv:1GiB?codec=", "there is no KV codec ''"),
        ("disk:/kv:1GiB?codec_when=never", "codec_when is sooner or always"),
    ],
)
def test_a_tier_that_cannot_be_read_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KVTierSettings(tiers=(text,))


def test_forms_of_tiers() -> None:
    assert parse_tier("dram:1.5GiB").capacity_bytes == 3 << 29
    disk = parse_tier("disk:/a:b/kv:10GB?bandwidth=100MB/s&latency=2ms&eviction=arc&durable=false")
    assert (disk.where, disk.capacity_bytes, disk.eviction, disk.durable) == ("/a:b/kv", 10**10, "arc", False)
    assert (disk.bandwidth, disk.latency) == (1e8, 0.002)
    assert parse_tier("valkey://h:1/0?ttl=0").ttl_s is None
    assert parse_tier("valkey://h:1/0?codec=int8,zstd&codec_when=always").codec == ("int8", "zstd")
    assert parse_tier("dram:1GiB").codec is None
    assert parse_tier("valkeys://h:1/0").where == "rediss://h:1/0"
    assert (parse_tier("s3://b/p/q").where, parse_tier("s3://b/p/q").prefix) == ("s3://b", "p/q")


def test_tiers_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    specs = [parse_tier("dram:1MiB"), parse_tier(f"disk:{tmp_path}/a:1MiB"), parse_tier(f"disk:{tmp_path}/b:1MiB")]
    shape = Expected(Shape(1, 1, "bfloat16", 4, 4))
    assert [tier.name for tier in build_tiers(specs, WallClock(), shape, TierOptions())] == ["dram", "disk", "disk2"]


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        (["dram:1KiB"], "a dram tier of 1 KiB has no room for one block of this model's KV, which takes 4"),
        (["dram:1MiB", "disk:{}:100B"], "a disk tier of 100 B has no room"),
        (["dram:9000TiB"], "the dram tiers may take 8.789 PiB, this machine has"),
        (["disk:{}:1MiB", "disk:{}/../kv:2MiB"], "is named as two KV tiers"),
    ],
)
def test_tiers_that_cannot_be_meant_are_one_clear_error(
    folder: Path, tmp_path: Path, tiers: list[str], said: str
) -> None:
    place = tmp_path / "kv"
    place.mkdir()
    with pytest.raises(UsageError, match=said):
        engine(folder, *(tier.format(place) for tier in tiers))


def test_a_folder_that_cannot_be_made_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        engine(folder, f"disk:{tmp_path / 'file' / 'kv'}:1MiB")

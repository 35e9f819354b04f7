"""A prefix whose end comes by layers while the suffix is computed gives the tokens of a lone, plain request, whatever the number
of groups and threads, the number types and the medium; also where a late layer is damaged. On the real default model."""

import asyncio
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from netgain.ledger.records import KVReuse
from netgain.serving.blocks.keys import KeyChain
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.object import unpack_head
from tests.waiting import PATIENCE_S

SAMPLING = (
    SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=6, temperature=0.8, top_k=50, seed=5, ignore_eos=True),
)
LINES = [
    f"In row {number} there are {number * number % 97} seats, {number % 7} of them taken.\n" for number in range(30)
]
PREFIX = "".join(LINES[:14])
SUFFIXES = tuple("".join(LINES[start : start + 6]) + "In row" for start in range(14, 20))
ASKED = tuple((PREFIX + suffix, SAMPLING[number % 2]) for number, suffix in enumerate(SUFFIXES))


def engine(path: Path, dtype: str, threads: int, **kv: object) -> LLM:
    tree: dict[str, object] = {
        "model": {"source": str(path), "dtype": dtype, "threads": threads},
        "cache": {"kv_tokens": 1024},
    }
    if kv:
        tree["kv"] = {"policy": "always", **kv}
    return LLM(EngineConfig.model_validate(tree))


@pytest.fixture(scope="module")
def plain(default_model_path: Path) -> Callable[[str], list[tuple[int, ...]]]:
    """What is answered without tiers, by compute type."""

    @cache
    def answers(dtype: str) -> list[tuple[int, ...]]:
        with engine(default_model_path, dtype, 1) as llm:
            return [llm.generate([prompt], sampling)[0].output_ids for prompt, sampling in ASKED]

    return answers


def ask(llm: LLM, asked=ASKED) -> tuple[list[tuple[int, ...]], list[KVReuse]]:
    """One after the other, with nothing on the device before each, and the prefix in tiers."""
    answers, reuse = [], []
    for prompt, sampling in asked:
        (done,) = llm.generate([prompt], sampling)
        assert done.error is None
        answers.append(done.output_ids)
        assert done.trace.kv is not None
        reuse.append(done.trace.kv)
        stored(llm)
    return answers, reuse


def stored(llm: LLM) -> None:
    one = llm.built.engine
    while one.has_work:
        asyncio.run(one.step())
    until_s = time.monotonic() + PATIENCE_S
    while any(value for name, value in one.tier_counters().items() if name.startswith("tier_queued_bytes")):
        assert time.monotonic() < until_s, "the tiers do not take what they are given"
        time.sleep(0.01)
    one.scheduler.pool.clear_cache()
    one.check()


@pytest.mark.parametrize(
    ("groups", "threads", "dtype", "where"),
    [
        (2, 1, "auto", "dram"),
        (6, 2, "auto", "disk"),
        pytest.param(16, 1, "bf16", "disk", marks=pytest.mark.slow),
        pytest.param(3, 2, "int8", "dram", marks=pytest.mark.slow),
    ],
)
def test_layers_that_come_meanwhile_change_no_token(
    default_model_path, plain, tmp_path, groups: int, threads: int, dtype: str, where: str
) -> None:
    tier = ("dram:64MiB" if where == "dram" else f"disk:{tmp_path}:64MiB") + "?bandwidth=60MB/s"
    with engine(default_model_path, dtype, threads, tiers=[tier], layer_groups=groups) as llm:
        llm.generate([PREFIX + "It ends here."], SAMPLING[0])
        stored(llm)
        answers, reuse = ask(llm)
        assert answers == plain(dtype)
        assert sum(kv.overlapped_tokens > 0 for kv in reuse) > 0, "no layers came while a suffix was computed"


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_file_damaged_in_its_last_layers_is_found_behind_the_first_ones(
    default_model_path, plain, tmp_path, how: str
) -> None:
    """The pass is under way when the damage is met: its work is void, the blocks are computed, the file is gone."""
    tier = f"disk:{tmp_path}:64MiB?bandwidth=60MB/s"
    with engine(default_model_path, "auto", 1, tiers=[tier], layer_groups=6) as llm:
        prefix = tuple(llm.built.loaded.tokenizer.encode(PREFIX, start=True))
        llm.generate([PREFIX + "It ends here."], SAMPLING[0])
        stored(llm)
        ask(llm, ASKED[:3])
        file = file_of(llm, tmp_path, prefix[: len(prefix) // 16 * 16])
        data = file.read_bytes()
        file.write_bytes(data[:-9] if how == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
        answers, (kv, *later) = ask(llm, ASKED[3:])
        assert answers == plain("auto")[3:]
        assert kv.failed
        assert kv.loaded_tokens < kv.chosen_tokens
        assert not any(one.failed for one in later), "what was computed instead is stored again"
        counters = llm.built.engine.tier_counters()
        assert counters["tier_refused/disk"] == 1


def file_of(llm: LLM, folder: Path, tokens: tuple[int, ...]) -> Path:
    """Where the last block of these tokens is stored."""
    one = llm.built.engine
    assert one._tiering is not None
    chain = KeyChain(one._tiering.envelope.root(one._namespace, b""), 16)
    chain.extend(tokens)
    (found,) = (
        file for file in folder.rglob("*.kv") if unpack_head(file.read_bytes()).stored.part.key == chain.keys[-1]
    )
    return found

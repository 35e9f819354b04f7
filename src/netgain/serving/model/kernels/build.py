"""Compiles the C++ kernels for this very processor at first use and keeps the library in the user's cache."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from netgain.errors import Unavailable

SOURCES = Path(__file__).parent / "csrc"
MACHINE_PROBE = Path(__file__).parent / "machine_probe.cpp"  # a program of one file, not part of the library
COMPILE_TIMEOUT_S = 300.0  # seconds; zig builds its C++ library first, which takes a minute or two once
VERSION_TIMEOUT_S = 20.0
OUTPUT_TAIL = 2000  # characters of the compiler's output that an error message keeps
SEAL = b"netgain-whole:"  # behind it, at the end of a built file, stands the SHA-256 of all before it
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
)
PROGRAM_FLAGS = (*FLAGS[:3], "-pthread")


def find_compiler(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command of a C++ compiler: $CXX, else g++, clang++ or the ziglang package. Raises Unavailable if there is none."""
    if chosen := environment.get("CXX", "").strip():
        return shlex.split(chosen)
    for name in ("g++", "clang++"):
        if path := shutil.which(name, path=environment.get("PATH")):
            return [path]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise Unavailable(
        "no C++ compiler found ($CXX, g++, clang++, python -m ziglang): install one, e.g. `pip install ziglang`"
    )


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """$NETGAIN_CACHE/kernels, else $XDG_CACHE_HOME/netgain/kernels, else ~/.cache/netgain/kernels."""
    try:
        if root := environment.get("NETGAIN_CACHE"):
            return Path(root).expanduser() / "kernels"
        return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "netgain" / "kernels"
    except RuntimeError as error:
        raise Unavailable("this user has no home folder for compiled kernels: set NETGAIN_CACHE to one") from error


def library_path(compiler: list[str], directory: Path, sources: Path = SOURCES, name: str = "kernels") -> Path:
    """Where the library of these sources, compiler and processor lies once it is built. Raises Unavailable."""
    return directory / f"netgain-{name}-{_key(compiler, sorted(sources.iterdir()), FLAGS)}.so"


def load_library(
    compiler: list[str],
    directory: Path,
    timeout_s: float = COMPILE_TIMEOUT_S,
    sources: Path = SOURCES,
    name: str = "kernels",
) -> ctypes.CDLL:
    """The library built by `compiler` from the folder `sources`, from the cache if these, compiler and processor are known
    there.

    Safe to call from several processes at once: each writes its own file and renames it into place.
    Raises Unavailable, with the end of the compiler's output, if it cannot be built or loaded.
    """
    path = library_path(compiler, directory, sources, name)
    if _is_whole(path):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # built for another system, say; build it again
            path.unlink(missing_ok=True)
    _build([*compiler, *FLAGS, *sorted(str(source) for source in sources.glob("*.cpp"))], path, timeout_s)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"the compiled kernels {path} cannot be loaded: {error}") from error


def load_machine_probe(compiler: list[str], directory: Path, timeout_s: float = COMPILE_TIMEOUT_S) -> Path:
    """The program that measures memory and messages (see its source), built if it is not there. Raises Unavailable."""
    path = directory / f"netgain-machine-probe-{_key(compiler, (MACHINE_PROBE,), PROGRAM_FLAGS)}"
    if not _is_whole(path):
        _build([*compiler, *PROGRAM_FLAGS, str(MACHINE_PROBE)], path, timeout_s)
    return path


def _build(command: list[str], path: Path, timeout_s: float) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as scratch:
            built = Path(scratch) / path.name
            _run([*command, "-o", str(built)], timeout_s)
            with built.open("r+b") as file:  # what stands behind a program's end is not looked at by the system
                file.write(SEAL + hashlib.sha256(file.read()).digest())
            built.replace(path)
    except OSError as error:
        raise Unavailable(
            f"cannot write compiled kernels to {path.parent}: {error}; set NETGAIN_CACHE elsewhere"
        ) from error


def _is_whole(path: Path) -> bool:
    """Whether what was built is all there: a library cut short would end the process that loads it (SIGBUS)."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    body, end = data[: -size - len(SEAL)], data[-size - len(SEAL) :]
    return end == SEAL + hashlib.sha256(body).digest()


def _run(command: list[str], timeout_s: float) -> str:
    shown = shlex.join(command[:3])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise Unavailable(f"the C++ compiler {command[0]!r} cannot be started: {error.strerror}; set CXX") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the C++ compiler `{shown} ...` gave no result within {timeout_s:g} s; set CXX") from error
    if done.returncode:
        tail = (done.stdout + done.stderr)[-OUTPUT_TAIL:].strip()
        raise Unavailable(f"the C++ compiler `{shown} ...` failed with status {done.returncode}:\n{tail}")
    return done.stdout


def _key(compiler: list[str], sources: Iterable[Path], flags: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    version = _run([*compiler, "--version"], VERSION_TIMEOUT_S)
    for part in (*compiler, *flags, version, _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _processor() -> str:
    """What -march=native depends on: model and features, as far as the system tells."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "features", "cpu implementer", "cpu part")
    lines: list[str] = []
    info = Path("/proc/cpuinfo")
    if info.exists():
        first = info.read_text(errors="replace").split("\n\n", 1)[0]
        lines = [line for line in first.splitlines() if line.split(":")[0].strip().lower() in wanted]
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *lines])

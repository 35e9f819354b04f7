"""Makes `.venv` with everything that `make decide` and `make test` need, once. Needs Python 3.11+ and its standard library only.

Run by `make setup`. A stamp in `.venv` holds the digest of what the installation depends on; while it matches, nothing is done.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / ".netgain-setup"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
EXTRAS = "serve,otel,valkey,objects,codecs,dev"
MINIMUM = (3, 11)


def main():
    """Make or complete `.venv`; exits with a message that says what to do when it cannot."""
    if sys.version_info < MINIMUM:
        fail(
            f"netgain needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer; this is {platform.python_version()} "
            f"({sys.executable}). Name another one: make setup PYTHON=/path/to/python3"
        )
    stamp = f"{ROOT}\n{fingerprint()}\n"
    before = STAMP.read_text() if STAMP.exists() else ""
    if PYTHON.exists() and before == stamp:
        say(f"{VENV.name} is up to date")
        return
    STAMP.unlink(missing_ok=True)
    make_venv(moved=bool(before) and before.partition("\n")[0] != str(ROOT))
    pip("install", "--upgrade", "pip")
    install_torch(torch_pin((ROOT / "pyproject.toml").read_text()))
    say(f"installing netgain[{EXTRAS}] and what it needs")
    pip("install", "--editable", f"{ROOT}[{EXTRAS}]")
    if not has_compiler():
        say("no C++ compiler on PATH: installing ziglang, which compiles netgain's kernels")
        pip("install", "ziglang")
    compile_kernels()
    STAMP.write_text(stamp)
    say(f"done: {VENV}")


def fingerprint():
    """Digest of what decides the content of `.venv`: declared dependencies, this script, the interpreter, the machine."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()]
    facts = f"{sys.version}\n{has_gpu()}\n{has_compiler()}"
    return hashlib.sha256(b"\0".join([*parts, facts.encode()])).hexdigest()


def torch_pin(pyproject):
    """The exact torch version that `pyproject` (the file's text) asks for in the serve extra."""
    import tomllib

    for requirement in tomllib.loads(pyproject)["project"]["optional-dependencies"]["serve"]:
        name, pin, version = requirement.partition("==")
        if pin and name == "torch":
            return version
    raise SystemExit("setup: pyproject.toml pins no torch==VERSION in the serve extra")


def torch_attempts(version, gpu, system):
    """Argument lists for pip, best first: the CPU build where no GPU is in sight, else what the configured index has."""
    plain = [f"torch=={version}"]
    if gpu or system != "Linux":
        return [plain]
    cpu = [f"torch=={version}+cpu"]
    # A configured index or folder may carry the CPU build; asking it alone first costs a second and needs no other host.
    return [cpu, [*cpu, "--extra-index-url", CPU_INDEX, "--timeout", "15", "--retries", "1"], plain]


def install_torch(version):
    """Install the pinned torch; without a GPU the build that brings no nvidia packages, if one can be had."""
    installed = output("-c", "import importlib.metadata as m; print(m.version('torch'))")
    if installed in (version, version + "+cpu"):
        return
    attempts = torch_attempts(version, has_gpu(), platform.system())
    for attempt in attempts[:-1]:
        say(f"installing {attempt[0]} (about 200 MB)")
        if pip("install", *attempt, check=False, quiet=True):
            return
    if len(attempts) > 1:
        say(f"no CPU build of torch {version} can be reached; taking the configured index's build, which may be large")
    pip("install", *attempts[-1])


def compile_kernels():
    """Compile the kernels into the user's cache now: ziglang first builds its own C++ library, which takes minutes."""
    say("compiling the kernels for this processor")
    program = (
        "from netgain.serving.model.kernels.build import *\n"
        "try: load_library(find_compiler(), cache_directory(), timeout_s=900)\n"
        "except Unavailable as reason: print(f'setup: {reason}\\nsetup: without them the slow reference runs')"
    )
    subprocess.run([str(PYTHON), "-c", program], check=False, cwd=ROOT)


def make_venv(moved):
    """Create `.venv`, or keep it if its interpreter still runs and is new enough. A moved one has scripts with dead paths."""
    wanted = f"import sys; print(sys.version_info >= {MINIMUM})"
    if PYTHON.exists() and not moved and output("-c", wanted) == "True" and output("-m", "pip", "--version"):
        return
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError:
        fail(
            f"this Python ({sys.executable}) cannot make virtual environments: its venv or ensurepip part is missing. "
            "On Debian and Ubuntu: apt install python3-venv. Or name another Python: make setup PYTHON=/path/to/python3"
        )
    say(f"creating {VENV} with Python {platform.python_version()}")
    venv.create(VENV, clear=True, with_pip=True)


def has_gpu():
    """Whether nvidia-smi is there and lists a device."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False, timeout=60)
    return listed.returncode == 0 and "GPU" in listed.stdout


def has_compiler():
    """Whether the kernels can be compiled without ziglang; looks where netgain looks."""
    return bool(os.environ.get("CXX", "").strip()) or any(shutil.which(name) for name in ("g++", "clang++"))


def pip(*arguments, check=True, quiet=False):
    """Run pip inside `.venv`. Returns whether it succeeded; with `check`, failure ends the set-up."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    done = subprocess.run(command, check=False, stderr=subprocess.DEVNULL if quiet else None)
    if check and done.returncode:
        fail(f"pip failed (above says why); once mended, run make setup again. The command was: {' '.join(command)}")
    return done.returncode == 0


def output(*arguments):
    """What `.venv`'s Python prints for `arguments`; empty when it fails."""
    done = subprocess.run([str(PYTHON), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def say(text):
    print(f"setup: {text}", flush=True)


def fail(text):
    raise SystemExit(f"setup: {text}")


if __name__ == "__main__":
    main()

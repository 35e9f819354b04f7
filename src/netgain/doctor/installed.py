"""Python, the extras that are installed, torch as it sees the machine, and other engines to compare with."""

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement

from netgain.doctor.finding import Finding, note, ok, problem, unknown
from netgain.wording import install_command

EXTRAS = ("serve", "otel")
PEERS = ("vllm", "sglang", "llama-cpp-python")

_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus, "threads": torch.get_num_threads(),
    "capability": torch.backends.cpu.get_cpu_capability(),
}))
"""


def python() -> Iterator[Finding]:
    yield ok("software", "python", f"{platform.python_version()} at {sys.executable}")
    yield ok("software", "netgain", importlib.metadata.version("netgain"))


def extras() -> Iterator[Finding]:
    """Each extra with the versions of its packages; the extra for serving is needed to serve."""
    lines = [Requirement(line) for line in importlib.metadata.requires("netgain") or ()]
    for extra in EXTRAS:
        needed = [line for line in lines if _belongs(line, extra)]
        have = {line.name: _version(line.name) for line in needed}
        missing = [name for name, version in have.items() if version is None]
        wrong = [
            f"{line.name} {have[line.name]} instead of {line.specifier}"
            for line in needed
            if (version := have[line.name]) is not None and not line.specifier.contains(version, prereleases=True)
        ]
        versions = ", ".join(f"{name} {version}" for name, version in have.items() if version is not None)
        install = install_command(extra)
        if not needed:
            yield unknown("software", extra, "the installed netgain does not know this extra", install_command(extra))
        elif missing and extra == "serve":
            seen = f"not installed: {', '.join(missing)}"
            yield problem("software", extra, seen, "this install measures and judges, but cannot serve", install)
        elif missing:
            yield note("software", extra, f"not installed: {', '.join(missing)}", "no tracing to a collector", install)
        elif wrong:
            yield note("software", extra, "; ".join(wrong), "netgain is not tested with these versions", install)
        else:
            yield ok("software", extra, versions)


def _belongs(line: Requirement, extra: str) -> bool:
    """Whether only this extra brings it."""
    return (
        line.marker is not None and line.marker.evaluate({"extra": extra}) and not line.marker.evaluate({"extra": ""})
    )


class TorchProbe:
    """Asks torch in a process of its own, since its import takes seconds; start it first, read it last."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._process: subprocess.Popen[str] | None = None
        self._failed: OSError | None = None
        if _version("torch") is not None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROBE],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                self._failed = error

    def read(self) -> Iterator[Finding]:
        if self._failed is not None:
            seen = f"no process can be started to ask it: {self._failed.strerror}"
            yield problem("software", "torch", seen, "a server needs a process of its own, too", "ulimit -u 4096")
            return
        if self._process is None:
            yield problem("software", "torch", "not installed", "no model can be computed", install_command("serve"))
            return
        try:
            out, err = self._process.communicate(timeout=self._wait_s)
        except subprocess.TimeoutExpired:
            seen = f"torch {_version('torch')} is installed, but did not answer within {self._wait_s:g} s"
            yield unknown("software", "torch", seen, "netgain doctor --wait 60")
            return
        finally:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            last = next((line for line in reversed(err.splitlines()) if line.strip()), "no message")
            again = f"pip uninstall -y torch, then {install_command('serve')}"
            yield problem("software", "torch", f"cannot be imported: {last}", "no model can be computed", again)
            return
        found = json.loads(out.splitlines()[-1])
        build = f"CUDA {found['cuda']}" if found["cuda"] else "CPU"
        yield ok(
            "software",
            "torch",
            f"{found['version']} ({build} build, {found['capability']}, {found['threads']} threads)",
        )
        if found["gpus"]:
            yield ok("machine", "GPU", f"torch sees {', '.join(found['gpus'])}")
        elif shutil.which("nvidia-smi"):
            means = "a driver is here, but this torch cannot use it"
            yield note("machine", "GPU", "torch sees none", means, "nvidia-smi, then install a CUDA build of torch")
        else:
            yield ok("machine", "GPU", "torch sees none; the CPU serves")


def peers() -> Iterator[Finding]:
    found = [f"{name} {version}" for name in PEERS if (version := _version(name)) is not None]
    if path := shutil.which("llama-server"):
        found.append(f"llama-server at {path}")
    yield ok("software", "other engines", ", ".join(found) or "none found (only needed for comparisons)")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

"""What the machine gives at most, and what a step costs beside the model: taken before any server runs."""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks import _report
from netgain.doctor.probe import probe_machine
from netgain.errors import Unavailable

STEP_BENCHMARK_S = 600.0


def read_bytes_per_s() -> float | None:
    """The bandwidth of memory; None if it cannot be probed."""
    return probe_machine(lambda text: print(text, file=sys.stderr)).read_bytes_per_s


def step_overhead() -> dict[str, _report.Figure]:
    """`step_overhead_ms_bN` of benchmarks.step, run in a process of its own. Raises Unavailable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        command = [sys.executable, "-m", "benchmarks.step", "--json", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_BENCHMARK_S)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"benchmarks.step took longer than {STEP_BENCHMARK_S:g} s") from error
        if done.returncode:
            raise Unavailable(f"benchmarks.step failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        figures = json.loads(path.read_text())
    return {
        name: value for name, value in figures.items() if name.startswith("step_overhead_ms_b") and "_q" not in name
    }


def decode_bytes(url: str, mean_context: float) -> float:
    """Bytes that a netgain server reads to decode one token behind `mean_context` tokens, as it says of itself."""
    about = _about(url)
    return float(about["step_weight_bytes"] + about["kv_token_bytes"] * mean_context)


def kernels(url: str) -> str:
    """Which kernels a netgain server computes with, as it says of itself, and why where they are not the compiled ones."""
    about = _about(url)
    return f"{about['kernels']} ({about['kernels_note']})" if about["kernels_note"] else str(about["kernels"])


def _about(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10.0) as answer:
        return dict(json.load(answer)["data"][0]["netgain"])

"""`pip install netgain` is for people who measure, compare and diagnose: neither its packages nor its imports bring torch."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement


def _closure(distribution: str) -> set[str]:
    """Names of everything that installing `distribution` without extras installs."""
    found: set[str] = set()
    waiting = [(distribution, frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        if name in found and not extras:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append((needed.name.lower().replace("_", "-"), frozenset(needed.extras)))
    return found


def test_base_dependencies_hold_no_torch_and_no_server() -> None:
    installed = _closure("netgain")
    assert "msgspec" in installed
    assert not installed & {
        "torch",
        "triton",
        "transformers",
        "fastapi",
        "uvicorn",
        "tokenizers",
        "safetensors",
        "gguf",
    }
    assert not [name for name in installed if name.startswith("nvidia")]


def test_torch_is_pinned_exactly_in_the_serve_extra() -> None:
    lines = [Requirement(line) for line in importlib.metadata.requires("netgain") or ()]
    torch = [line for line in lines if line.name == "torch"]
    assert [str(line.specifier)[:2] for line in torch] == ["=="]
    assert all('extra == "serve"' in str(line.marker) for line in torch)


def test_every_torch_free_room_imports_without_the_serve_extra() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("import_base_rooms.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "netgain.ledger.stage" in done.stdout

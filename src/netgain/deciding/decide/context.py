"""Machine and versions that a result belongs to; a figure without them cannot be compared with another."""

import importlib.metadata
import os
import platform

import psutil

from netgain.cost.machine import cpu_name

Context = dict[str, str | int | float | None]


def context() -> Context:
    """What can be known without asking the server. None = could not be found out."""
    return {
        "netgain": _version("netgain"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores_available": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

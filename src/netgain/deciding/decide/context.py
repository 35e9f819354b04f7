"""Machine and versions that a result belongs to; a figure without them cannot be compared with another."""

import importlib.metadata
import platform

import psutil

from netgain.cost.machine import MachineProbe, cpu_name, kept_probe, this_machine, usable_cores
from netgain.deciding.decide.server import Served
from netgain.deciding.verdict.document import Caveat
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.measuring.measurement.reference_kernels import reference_kernels

Context = dict[str, str | int | float | None]


def context() -> Context:
    """What can be known without asking the server. None = could not be found out."""
    return {
        "netgain": _version("netgain"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores_available": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def caveats_of(served: Served) -> tuple[Caveat, ...]:
    """What the engine itself says of its settings."""
    notes = [
        served.told.get("settings_note"),
        reference_kernels("netgain", served.told) or served.told.get("kernels_note"),
    ]
    return tuple(
        Caveat(says=note, engine="netgain", source="/v1/models of the baseline")
        for note in notes
        if note not in (None, "", "null")
    )


def probed() -> MachineProbe | None:
    """What `netgain doctor` found of this machine, which the servers that are started run on."""
    try:
        return kept_probe(cache_folder(), this_machine())
    except UsageError:
        return None

"""When a comparison goes on after a crash: what its folder holds, and whether servers that others run are still those that it
had begun with."""

from collections.abc import Mapping
from pathlib import Path

from netgain.deciding.compare.settings import Settings
from netgain.deciding.compare.write import JSON
from netgain.deciding.experiment.journal import FILE
from netgain.errors import UsageError
from netgain.measuring.measurement.identity import changes
from netgain.measuring.measurement.result import Server


def check_unused(settings: Settings) -> None:
    """Raises UsageError where blocks in the folder would be lost by beginning anew. Those of running servers are no longer needed
    once their report is written, so that a command may write to the same folder again."""
    blocks, report = settings.output / FILE, settings.output / JSON
    if not blocks.exists():
        return
    done = report.exists() and report.stat().st_mtime_ns >= blocks.stat().st_mtime_ns
    if settings.started or not done:
        raise UsageError(f"{settings.output} holds another experiment; resume it (--resume), or name another folder")


def running_servers(settings: Settings, met: Mapping[str, Server]) -> dict[str, Server]:
    """Of all sides, those that are not started here, as they told of themselves."""
    return {name: server for name, server in met.items() if name not in settings.started}


def check_same_servers(
    folder: Path, before: Mapping[str, Server], now: Mapping[str, Server], mirrored: bool
) -> tuple[str, ...]:
    """What remains to be said of a run that goes on with them. Raises UsageError where one tells that it is another process,
    engine or model than before, since blocks on both sides of a restart are not of one server. `mirrored`: no prompt is found in
    a cache when it is sent again."""
    caveats: list[str] = []
    for name, server in now.items():
        found = changes(before[name], server) if name in before else None
        if found:
            raise UsageError(
                f"{folder} cannot be resumed: the {name} server at {server.url} is not as it was when the run began: "
                f"{'; '.join(found)}. Begin a new run in another folder"
            )
        if found is None:
            caveats.append(
                f"The run went on after it had ended, and the {name} server does not tell when its process began: a restart in "
                "between would not have been seen."
            )
    if now and not mirrored:
        caveats.append(
            "The run went on after it had ended, on servers whose caches are not controlled: of the block that was cut off, one "
            "server may have found prompts that it had been sent before."
        )
    return tuple(caveats)

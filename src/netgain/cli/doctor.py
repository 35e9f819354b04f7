"""`netgain doctor`: what on this machine, or in a running server, stands in the way of serving."""

import shutil
import sys
import textwrap
from json import dumps
from typing import Annotated

import msgspec
import typer

from netgain.cost.machine import MachineProbe, keep_probe, kept_probe, this_machine
from netgain.doctor.examine import TORCH_WAIT_S, examine, stops_serving
from netgain.doctor.finding import Finding, State
from netgain.doctor.probe import probe_machine
from netgain.doctor.probed import findings_of, not_kept, not_probed
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.wording import count

_INDENT = " " * 30


def doctor(
    url: Annotated[
        str | None, typer.Option(help="A running server to look at, too; NETGAIN_API_KEY is its key.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address that a server would listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that a server would listen on.", min=1, max=65535)] = 8000,
    wait: Annotated[
        float, typer.Option(help="Most seconds to wait for torch to say what it sees.", min=0.1, max=600)
    ] = TORCH_WAIT_S,
    probe: Annotated[
        bool,
        typer.Option("--probe/--no-probe", help="Measure memory, matrix products and messages, and keep the result."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Look at software, machine, limits, cache, port and server, and measure what the machine can do; exit code 1 if
    something would stop serving."""
    findings = examine(host=host, port=port, url=url, wait_s=wait)
    stops = stops_serving(findings)
    probed, more = _probe() if probe else _kept()
    findings += more
    if json:
        found = {"stops_serving": stops, "findings": findings, "probe": probed}
        print(dumps(msgspec.to_builtins(found)))  # names of files may be no text
        return int(stops)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            print(area)
        _show(f"  {finding.state.value:8} {finding.name:18} ", finding.seen)
        _show(_INDENT, finding.means)
        _show(f"{_INDENT}mend: ", finding.mend, whole=True)
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    known = ", ".join((count(counts[State.PROBLEM], "problem"), count(counts[State.NOTE], "note")))
    print(f"\n{known}, {counts[State.UNKNOWN]} unknown")
    return int(stops)


def _probe() -> tuple[MachineProbe, tuple[Finding, ...]]:
    """Probe and keep the result."""
    taken = probe_machine(_tell)
    try:
        kept = keep_probe(cache_folder(), taken)
    except (OSError, UsageError) as error:
        return taken, (*findings_of(taken, taken), not_kept(error))
    return taken, findings_of(taken, kept)


def _tell(text: str) -> None:
    if sys.stderr and sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr, flush=True)


def _kept() -> tuple[MachineProbe | None, tuple[Finding, ...]]:
    """What an earlier probe found."""
    try:
        kept = kept_probe(cache_folder(), this_machine())
    except UsageError:  # the cache folder has a finding of its own
        kept = None
    return kept, (not_probed(),) if kept is None else findings_of(kept, kept)


def _show(label: str, text: str | None, whole: bool = False) -> None:
    """Wrapped to a terminal of at least 60 columns; lines that are to be copied, and what is piped, stay `whole`."""
    if text is None:
        return
    if whole or not sys.stdout or not sys.stdout.isatty():
        print(f"{label}{text}")
        return
    width = max(60, shutil.get_terminal_size().columns)
    for line in textwrap.wrap(text, width - len(_INDENT), break_on_hyphens=False) or [""]:
        print(f"{label}{line}")
        label = _INDENT

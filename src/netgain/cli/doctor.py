"""`netgain doctor`: what on this machine, or in a running server, stands in the way of serving."""

import shutil
import sys
import textwrap
from json import dumps
from typing import Annotated

import msgspec
import typer

from netgain.doctor.examine import TORCH_WAIT_S, examine, stops_serving
from netgain.doctor.finding import State
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
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Look at software, machine, limits, cache, port and server; exit code 1 if something would stop serving."""
    findings = examine(host=host, port=port, url=url, wait_s=wait)
    stops = stops_serving(findings)
    if json:
        print(
            dumps({"stops_serving": stops, "findings": msgspec.to_builtins(findings)})
        )  # names of files may be no text
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

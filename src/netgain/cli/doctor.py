"""`netgain doctor`: what on this machine, or in a running server, stands in the way of serving."""

from typing import Annotated

import msgspec
import typer

from netgain.doctor.examine import examine, stops_serving
from netgain.doctor.finding import State


def doctor(
    url: Annotated[
        str | None, typer.Option(help="A running server to look at, too; NETGAIN_API_KEY is its key.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address that a server would listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that a server would listen on.", min=1, max=65535)] = 8000,
    wait: Annotated[float, typer.Option(help="Seconds to wait for torch to say what it sees.", min=0.1, max=600)] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> int:
    """Look at software, machine, limits, cache, port and server; exit code 1 if something would stop serving."""
    findings = examine(host=host, port=port, url=url, wait_s=wait)
    stops = stops_serving(findings)
    if json:
        print(msgspec.json.encode({"stops_serving": stops, "findings": findings}).decode())
        return int(stops)
    area = None
    for finding in findings:
        if finding.area != area:
            area = finding.area
            print(f"{area}")
        print(f"  {finding.state.value:8} {finding.name:18} {finding.seen}")
        if finding.means is not None:
            print(f"           {'':18} {finding.means}")
        if finding.mend is not None:
            print(f"           {'':18} mend: {finding.mend}")
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    print(f"\n{counts[State.PROBLEM]} problems, {counts[State.NOTE]} notes, {counts[State.UNKNOWN]} unknown")
    return int(stops)

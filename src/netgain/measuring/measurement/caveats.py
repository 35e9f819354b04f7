"""What must be known before a figure of a measurement is used."""

from urllib.parse import urlsplit

from netgain.measuring.client.summary import LittlesLaw, format_seconds
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.reference_kernels import reference_kernels
from netgain.measuring.measurement.result import Measurement
from netgain.measuring.measurement.server import Met
from netgain.wording import count

LITTLE_DOUBT = 0.1
COUNTS_APART = 0.05
WINDOW_SHARE = 0.25  # a request that takes more of the window than this is mostly ramp


def caveats_of(measurement: Measurement, met: Met, ask: Ask) -> tuple[str, ...]:
    """In the order in which they matter."""
    summary, load, prompts, client = measurement.summary, measurement.load, measurement.prompts, measurement.client
    said: list[str] = []
    if summary.void is not None:
        said.append(f"The client was the bottleneck, so nothing may be read off about the server: {summary.void}.")
    said += [
        f"The server began again or changed while it was measured: {change}." for change in measurement.restarts or ()
    ]
    reference = reference_kernels(measurement.server.engine, measurement.server.said)
    if reference is not None:
        said.append(reference)
    if summary.failed:
        kinds = ", ".join(f"{number} {kind.value}" for kind, number in summary.errors.items())
        said.append(
            f"{summary.failed} of {count(summary.requests, 'request')} failed ({kinds}); they count as infinitely late."
        )
    silent = summary.succeeded - (summary.ttft.count or 0)
    if silent > 0:
        said.append(
            f"{silent} of {count(summary.requests, 'request')} were answered without a token: they count as ended, with no first "
            "token to wait for, so end-to-end times tell little of the model's work; look at what the server answers."
        )
    if summary.resent:
        said.append(
            f"{count(summary.resent, 'request')} went out a second time, because the server had closed the connection that was "
            "used again; the time that this took is in the figures."
        )
    if measurement.stopped is not None:
        said.append(
            f"It was ended early ({measurement.stopped}); {count(measurement.unfinished, 'request')} in flight then "
            "left out: the slow ones are missing from the figures, more so the shorter the measurement was."
        )
    if not summary.requests:
        said.append("No request was counted: the time was over before the warm-up was.")
    if measurement.saturation is not None and ask.slo is not None and (free := ask.slo.leaves_free) is not None:
        said.append(
            f"The SLO ({ask.slo}) bounds no {free}, so at the rate that was found it may be anything: give ttft and itl together "
            "for the goodput that bounds both."
        )
    if load.kind == "closed":
        said.append(
            "A closed loop waits for the server, so overload does not show; use --rate for what users would see."
        )
    if prompts.sent_each is not None and prompts.sent_each > 1 and not load.salted:
        said.append(
            f"Prompts were sent up to {prompts.sent_each} times, and a prefix cache makes repeats cheaper than new prompts."
        )
    if prompts.synthetic:
        said.append(
            "Prompts are synthetic text of recorded lengths: nothing that depends on what they say may be concluded."
        )
    rules = [name for name in summary.tokens_source if name != "usage"]
    if rules:
        said.append(
            f"The server gave no running token counts; tokens were counted by the rule {', '.join(rules)!s} (docs/measuring.md)."
        )
    if summary.little is not None and abs(summary.little.deviation) > LITTLE_DOUBT:
        said.append(_unsteady(summary.little, summary.window_s))
    if summary.ttft.thin:
        few = " and ".join(summary.ttft.thin)
        said.append(f"{count(summary.requests, 'request')} are too few for {few}: that is simply the slowest request.")
    said += _of_server(measurement)
    if client is not None and urlsplit(met.base).hostname in ("127.0.0.1", "localhost", "::1") and client.cpu_share:
        said.append(f"Client and server share this machine; the client used {client.cpu_share:.0%} of a core.")
    return (*said, *met.notes)


def _unsteady(little: LittlesLaw, window_s: float) -> str:
    seen = f"{little.in_flight:.2f} requests in flight, rate times mean time is {little.derived:.2f} ({little.deviation:+.0%})"
    if little.mean_time_s > WINDOW_SHARE * window_s:
        return (
            f"A window of {window_s:.1f} s is short for requests that take {format_seconds(little.mean_time_s)}: it shows how "
            f"the load built up, not a steady one ({seen})."
        )
    return f"The load was not steady, or records are missing: {seen}."


def _of_server(measurement: Measurement) -> list[str]:
    seen = measurement.server_side
    if seen is None:
        return ["No server metrics were asked for."]
    if seen.absent is not None:
        return [f"No server metrics: {seen.absent}."]
    window = seen.window
    assert window is not None
    said: list[str] = []
    if window.missed:
        said.append(f"{window.missed} of {window.missed + window.scrapes} scrapes of the server's metrics failed.")
    said += [f"A server metric could not be used: {problem}." for problem in window.problems]
    output = seen.figures.get("output_tokens")
    ours = measurement.summary.output_tokens
    if output is not None and output.gained is not None and ours and measurement.load.warm_up == 0:
        apart = output.gained / ours - 1.0
        if abs(apart) > COUNTS_APART:
            said.append(
                f"The server counted {output.gained:,.0f} output tokens in the window, the client {ours:,} ({apart:+.0%}): "
                "others use this server, or one of the two counts otherwise."
            )
    return said

"""A measurement for the terminal: what held, how sure it is, and what must be known before it is used."""

import math
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netgain.cost.price import BASIS
from netgain.measuring.client.percentiles import Percentiles
from netgain.measuring.client.summary import format_seconds
from netgain.measuring.measurement.result import Measurement, Saturation
from netgain.measuring.observe.names import Figure


def show(measurement: Measurement, console: Console) -> None:
    """Print it."""
    server = measurement.server
    engine = " ".join(part for part in (server.engine, server.version) if part)
    source = measurement.source
    by = (
        ""
        if source.tool == "netgain"
        else f", measured by {source.tool}{f' {source.version}' if source.version else ''}"
    )
    console.print(
        f"[bold]{escape(server.model or 'a model that is not named')}[/]"
        f"{f' on {escape(engine)}' if engine else ''}{f' at {escape(server.url)}' if server.url else ''}{escape(by)}",
        soft_wrap=True,
        highlight=False,
    )
    prompts = f"{measurement.prompts.name}, " if measurement.prompts.name else ""
    console.print(escape(f"{prompts}{measurement.load.text}, {_counts(measurement)}"), soft_wrap=True, highlight=False)
    if measurement.saturation is not None:
        _show_saturation(measurement.saturation, console)
    console.print(_latencies(measurement))
    for line in _rates(measurement):
        console.print(escape(line), soft_wrap=True, highlight=False)
    if measurement.server_side is not None and measurement.server_side.figures:
        console.print(_server(measurement.server_side.figures))
    for caveat in measurement.caveats:
        console.print(f"[yellow]![/] {escape(caveat)}", soft_wrap=True, highlight=False)


def _counts(measurement: Measurement) -> str:
    summary = measurement.summary
    warm = f" after {measurement.load.warm_up} for warming up" if measurement.load.warm_up else ""
    return f"{summary.requests} requests{warm}, {summary.failed} failed, {summary.window_s:.1f} s"


def _show_saturation(found: Saturation, console: Console) -> None:
    """Why a window held or not stands below, in lines as long as they need."""
    table = Table(title="Saturation search", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("requests/s", "holds", "TTFT", "ITL", "attainment", "goodput/s", "in flight"):
        table.add_column(name, justify="left" if name == "holds" else "right", no_wrap=True)
    windows = sorted(found.windows, key=lambda window: window.rate_per_s)
    for window in windows:
        verdict = {True: "[green]yes[/]", False: "[red]no[/]", None: "?"}[window.met]
        attainment = "" if window.attainment is None or window.early else f"{window.attainment:.1%}"
        table.add_row(
            f"{window.rate_per_s:.3g}",
            verdict,
            "" if window.early else format_seconds(window.ttft_s),
            "" if window.early else format_seconds(window.itl_s),
            attainment,
            "" if window.early else _number(window.goodput_per_s),
            "" if window.early else _number(window.in_flight),
        )
    console.print(table)
    for window in windows:
        if not window.met:
            said = "?" if window.met is None else "no"
            console.print(escape(f"{window.rate_per_s:.3g}/s {said}: {window.why}"), soft_wrap=True, highlight=False)
    console.print(f"[bold]{escape(found.text)}[/]", soft_wrap=True, highlight=False)
    if found.goodput_per_s is not None:
        console.print(
            f"goodput there: {_number(found.goodput_per_s)} requests/s that meet all targets", highlight=False
        )


def _latencies(measurement: Measurement) -> Table:
    summary = measurement.summary
    table = Table(
        title="Latency from the scheduled time, with 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("")
    for name in ("p50", "p95", "p99", "mean", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, figure in (
        ("TTFT", summary.ttft),
        ("ITL\nper token", summary.itl),
        ("TPOT\nper request", summary.tpot),
        ("chunk gap", summary.chunk_gap),
        ("end to end", summary.e2e),
    ):
        table.add_row(label, *(_quantile(figure, name) for name in ("p50", "p95", "p99")), *_rest(figure))
    return table


def _quantile(figure: Percentiles, name: str) -> str:
    value: float | None = getattr(figure, name)
    if value is None:
        return "failed" if figure.failed else "n/a"
    text = format_seconds(value)
    interval = figure.interval.get(name)
    if interval is None:
        return f"{text} *" if name in figure.thin else text
    low, high = (math.inf if end is None else end for end in interval)  # JSON's null of an infinite end: it failed
    if _unit(low) == _unit(high) == _unit(value):
        return f"{text}\n{_bare(low, value)} to {_bare(high, value)}"
    return f"{text}\n{format_seconds(low)} to {format_seconds(high)}"


def _bare(value: float, like: float) -> str:
    """Without its unit where that is the one of `like`."""
    text = format_seconds(value)
    return text.split(" ")[0] if _unit(value) == _unit(like) else text


def _unit(value: float) -> str:
    return format_seconds(value).rpartition(" ")[2]


def _rest(figure: Percentiles) -> tuple[str, str]:
    count = "unknown" if figure.count is None else f"{figure.count:,}"
    return format_seconds(figure.mean), count + (f" + {figure.failed} failed" if figure.failed else "")


def _rates(measurement: Measurement) -> Iterable[str]:
    summary, client = measurement.summary, measurement.client
    if any((summary.ttft.thin, summary.itl.thin)):
        yield "* so few samples that it is simply the largest"
    yield (
        f"{_number(summary.requests_per_s)} requests/s ended, {_number(summary.output_tokens_per_s)} output tokens/s"
        + _tokens(measurement)
    )
    if summary.slo is not None:
        within = _interval(summary.attainment_interval, "{:.1%}")
        good = _interval(summary.goodput_interval, "{:.3g}")
        attained = "unknown" if summary.attainment is None else f"{summary.attainment:.1%}{within}"
        yield f"SLO {summary.slo}: met by {attained} of requests, goodput {_number(summary.goodput_per_s)}/s{good}"
        for target in summary.slo_targets:
            verdict = {True: "holds", False: "fails", None: "cannot be judged"}[target.met]
            yield f"  {target.target} {verdict}: {format_seconds(target.value_s)}" + (
                " (few samples)" if target.thin else ""
            )
    yield from _cost(measurement)
    if summary.little is not None:
        little = summary.little
        yield (
            f"Little's law: {little.in_flight:.2f} in flight; {little.rate_per_s:.3g}/s x {format_seconds(little.mean_time_s)} "
            f"= {little.derived:.2f} ({little.deviation:+.1%})"
        )
    if client is not None:
        share = "unknown" if client.cpu_share is None else f"{client.cpu_share:.0%} of a core"
        yield (
            f"client: {share}; sent {format_seconds(client.lateness_p50_s)} late (p50), "
            f"{format_seconds(client.lateness_p99_s)} (p99)"
        )


def _cost(measurement: Measurement) -> Iterable[str]:
    cost = measurement.cost
    if cost is None:
        return
    write = cost.price.written
    yield (
        f"cost at {cost.price}, {cost.devices}: {write(cost.per_million_output_tokens)} per million output tokens, "
        f"{write(cost.per_million_tokens)} per million prompt and output tokens, "
        f"{write(cost.per_request_within_slo)} per request within the SLO"
    )
    if cost.unknown:
        yield f"  unknown: {'; '.join(cost.unknown)}"
    yield f"  {BASIS}"


def _tokens(measurement: Measurement) -> str:
    summary = measurement.summary
    parts = []
    if summary.prompt_tokens is not None:
        cached = f" ({summary.cached_tokens:,} from cache)" if summary.cached_tokens is not None else ""
        parts.append(f"{summary.prompt_tokens:,} prompt tokens{cached}")
    if summary.output_tokens is not None:
        parts.append(f"{summary.output_tokens:,} output tokens")
    return f"; {', '.join(parts)}" if parts else ""


def _server(figures: dict[str, Figure]) -> Table:
    table = Table(
        title="The server's own metrics over the window", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("", no_wrap=True)
    table.add_column("value")
    table.add_column("name", overflow="fold")  # to be looked for elsewhere, so no letter of it is left out
    for meaning, figure in figures.items():
        label = meaning.replace("_", " ")
        table.add_row(label, _figure(figure), escape(figure.name or f"none of {', '.join(figure.tried[:2])}"))
    return table


def _figure(figure: Figure) -> str:
    if figure.name is None:
        return "unknown"
    if figure.problem is not None:
        return f"unknown: {figure.problem}"
    if figure.role == "counter":
        return "unknown" if figure.gained is None else f"+{figure.gained:,.0f} {figure.unit}"
    if figure.role == "gauge":
        shown = (
            "unknown" if value is None else _gauge(value, figure.unit)
            for value in (figure.least, figure.mean, figure.most)
        )
        return "least {}, mean {}, most {}".format(*shown)
    if not figure.count:
        return "no observation"
    within = ", ".join(f"{name} {_bucket(figure.between.get(name))}" for name in ("p50", "p95"))
    return f"mean {format_seconds(figure.mean)}, {within} ({figure.count:,.0f} samples)"


def _bucket(bounds: tuple[float, float | None] | None) -> str:
    if bounds is None:
        return "n/a"
    low, high = bounds
    if high is None:
        return f"above {format_seconds(low)}"
    return f"up to {format_seconds(high)}" if low <= 0.0 else f"{_bare(low, high)} to {format_seconds(high)}"


def _gauge(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else f"{value:.3g}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}" if value < 1000.0 else f"{value:,.0f}"


def _interval(interval: tuple[float, float] | None, form: str) -> str:
    return "" if interval is None else f" ({form.format(interval[0])} to {form.format(interval[1])})"

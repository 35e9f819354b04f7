"""A saturation search on a server: one window of open-loop load per rate, ended early where the SLO is already out of reach."""

import importlib.metadata
import math
import time
from collections.abc import Sequence
from typing import Literal

from netgain.errors import Unavailable
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.summary import Summary, format_seconds
from netgain.measuring.measurement.ask import Ask, Narrator
from netgain.measuring.measurement.conduct import Conducted, conduct, growing, load_for, ramp
from netgain.measuring.measurement.records import Row, rows_of
from netgain.measuring.measurement.result import Measurement, Prompts, Saturation, Source, Window
from netgain.measuring.measurement.saturation import Rules, bracket, next_rate, windows_expected
from netgain.measuring.measurement.server import Met, settle
from netgain.measuring.workload.arrivals import OpenLoop, at_rate
from netgain.measuring.workload.item import Item
from netgain.wording import count

LEAST_WINDOW_S = 10.0
BEYOND_QUANTILE = 3  # requests of a window that may lie beyond the SLO's strictest quantile
LEAST_REQUESTS = 20
Limit = Literal["precision", "budget", "client", "range", "windows"]


async def saturate(
    ask: Ask, met: Met, items: Sequence[Item], shape: OpenLoop, left_s: float | None, narrator: Narrator
) -> tuple[Measurement, list[Row]]:
    """The measurement (of the last window at the highest rate that held) and the requests of all windows."""
    slo = ask.slo
    assert slo is not None
    ends_s = math.inf if left_s is None else time.monotonic() + left_s
    rules = Rules(start_per_s=ask.rate_per_s or 1.0 / met.unloaded_s, precision=ask.precision, repeats=ask.repeats)
    wanted = max(math.ceil(BEYOND_QUANTILE / (1.0 - max(target.quantile for target in slo.targets))), LEAST_REQUESTS)
    expected = windows_expected(rules)
    most_s = math.inf if left_s is None else left_s / expected
    about_s = sum(_window_s(rules.start_per_s * 2.0**n, wanted, most_s) for n in (0, 1, 2)) / 3 * expected
    narrator.found(
        f"searching the highest rate at which {slo} holds: about {count(expected, 'window')}, "
        f"{min(about_s, left_s or math.inf) / 60.0:.0f} min"
    )
    outcomes: dict[float, list[bool]] = {}
    windows: list[Window] = []
    rows: list[Row] = []
    kept: dict[float, Conducted] = {}
    limit: Limit = "precision"
    narrator.phase("searching", expected)
    while (rate := next_rate(outcomes, rules)) is not None:
        lasts_s = _window_s(rate, wanted, most_s)
        if time.monotonic() + min(lasts_s, LEAST_WINDOW_S) > ends_s:
            limit = "budget"
            break
        seed = ask.seed * 1000 + len(windows)
        done, window = await _window(ask, met, items, at_rate(shape, rate, seed), rate, seed, lasts_s)
        rows += rows_of(len(windows), done.run.started_s, done.run.warm_up, done.run.records, items)
        windows.append(window)
        kept[rate] = done
        narrator.step(_told(window))
        if window.met is None:
            limit = "client"
            break
        outcomes.setdefault(rate, []).append(window.met)
        if window.early:
            await settle(met, items[0])
    else:
        found = bracket(outcomes)
        if sum(map(len, outcomes.values())) >= rules.most_windows:
            limit = "windows"
        elif found.low is None or found.high is None:
            limit = "range"
    if not kept:
        raise Unavailable("the time ended before the first window of the search; give it a longer --budget")
    found = bracket(outcomes)
    shown = kept[found.low] if found.low is not None else kept[min(kept)]
    measurement = Measurement(
        netgain=importlib.metadata.version("netgain"),
        source=Source(tool="netgain", version=importlib.metadata.version("netgain")),
        began_unix_s=shown.began_unix_s,
        ended_unix_s=shown.ended_unix_s,
        server=met.server,
        prompts=Prompts(name=None),
        load=load_for(ask, met, shown.run.arrivals, shown.extent),
        summary=shown.summary,
        client=shown.run.client,
        server_side=shown.server_side,
        saturation=conclude(str(slo), outcomes, windows, limit),
    )
    return measurement, rows


def conclude(slo: str, outcomes: dict[float, list[bool]], windows: Sequence[Window], limit: Limit) -> Saturation:
    """What the windows allow to say."""
    found = bracket(outcomes)
    goodput = [
        window.goodput_per_s
        for window in windows
        if window.rate_per_s == found.low and window.goodput_per_s is not None
    ]
    low, high = found.low, found.high
    low_met = None if low is None else (sum(outcomes[low]), len(outcomes[low]))
    high_met = None if high is None else (sum(outcomes[high]), len(outcomes[high]))
    if low is not None and high is not None:
        text = (
            f"{slo} holds up to a rate between {low:.3g} and {high:.3g} requests/s "
            f"({low_met[0]} of {count(low_met[1], 'window')} met it below, {high_met[0]} of {high_met[1]} above)"  # type: ignore[index]
        )
    elif low is not None:
        text = f"{slo} holds at {low:.3g} requests/s; the rate at which it fails was not found"
    elif high is not None:
        text = f"{slo} fails already at {high:.3g} requests/s; no rate was found at which it holds"
    else:
        text = f"no window could be judged for {slo}"
    why = {
        "precision": "",
        "budget": ". The time ended before the search: more --budget narrows it",
        "client": ". Beyond it the client was the bottleneck, so the server may do more",
        "range": ". The search left the range of rates",
        "windows": ". The windows contradicted each other too often to go on",
    }[limit]
    return Saturation(
        slo=slo,
        low_per_s=low,
        high_per_s=high,
        low_met=low_met,
        high_met=high_met,
        goodput_per_s=sum(goodput) / len(goodput) if goodput else None,
        limit=limit,
        text=text + why,
        windows=tuple(windows),
    )


def _window_s(rate: float, wanted: int, most_s: float) -> float:
    return min(max(wanted / rate, LEAST_WINDOW_S), max(most_s, LEAST_REQUESTS / rate))


async def _window(
    ask: Ask, met: Met, items: Sequence[Item], arrivals: OpenLoop, rate: float, seed: int, lasts_s: float
) -> tuple[Conducted, Window]:
    slo = ask.slo
    assert slo is not None
    requests = max(LEAST_REQUESTS, round(rate * lasts_s))
    extent = Extent(warm_up=ramp(arrivals, met.unloaded_s, ask.warm_up_s), requests=requests)
    done = await conduct(met, items, arrivals, extent, slo, lasts_s, give_up=True, tag=f"-{seed}")
    summary = done.summary
    verdict, why = _judge(done)
    values = {target.target.partition(".")[0]: target.value_s for target in summary.slo_targets}
    return done, Window(
        rate_per_s=rate,
        seed=seed,
        met=verdict,
        why=why,
        early=done.early is not None,
        requests=summary.requests,
        failed=summary.failed,
        ttft_s=values.get("ttft", summary.ttft.p95),
        itl_s=values.get("itl", summary.itl.p95),
        attainment=summary.attainment,
        goodput_per_s=summary.goodput_per_s,
        output_tokens_per_s=summary.output_tokens_per_s,
        in_flight=None if summary.little is None else summary.little.in_flight,
        lasted_s=done.run.finished_s - done.run.started_s,
    )


def _judge(done: Conducted) -> tuple[bool | None, str]:
    summary: Summary = done.summary
    if done.early is not None:
        return False, f"{done.early} was out of reach after {count(summary.requests, 'request')}"
    if summary.void is not None:
        return None, summary.void
    for target in summary.slo_targets:
        if target.met is not True:
            return False, f"{target.target} was {format_seconds(target.value_s)}"
    if growing(done.run):
        return False, "ever more requests were in flight"
    return True, "all targets held"


def _told(window: Window) -> str:
    verdict = {True: "holds", False: "fails", None: "cannot be judged"}[window.met]
    return f"{window.rate_per_s:.3g}/s {verdict}: {window.why}"

"""A saturation search on a server: one window of open-loop load per rate, ended early where the SLO is already out of reach."""

import asyncio
import importlib.metadata
import math
import time
from collections.abc import Sequence
from typing import Literal

from netgain.errors import Unavailable
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.client.summary import Summary, format_seconds
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.conduct import Conducted, conduct, growing, load_for, ramp
from netgain.measuring.measurement.records import Row, rows_of
from netgain.measuring.measurement.result import Measurement, Prompts, Saturation, Source, Window
from netgain.measuring.measurement.saturation import Rules, bracket, judged, next_rate, windows_expected
from netgain.measuring.measurement.server import SETTLE_S, Met, settle
from netgain.measuring.workload.arrivals import Bursty, OpenLoop, Poisson, at_rate
from netgain.measuring.workload.item import Item
from netgain.measuring.workload.slo import SLO
from netgain.wording import count

LEAST_WINDOW_S = 10.0
BEYOND_QUANTILE = 3  # requests of a window that may lie beyond the SLO's strictest quantile
LEAST_REQUESTS = 20
APART = 0.1  # requests so far apart, as a share of how often one alone could be answered, do not meet each other
EVEN_RATE = 0.02  # by how much the rate of the arrivals drawn may differ from the one asked for
_DRAWS = 400
Limit = Literal["precision", "budget", "client", "range", "windows", "stopped", "server"]


async def saturate(
    ask: Ask, met: Met, items: Sequence[Item], shape: OpenLoop, left_s: float | None, narrator: Narrator
) -> tuple[Measurement, list[Row]]:
    """The measurement (of the last window at the highest rate that held) and the requests of all windows.

    Always ends: by the precision, the time, the number of windows or the range of rates; interrupted (cancelled), with what
    was found until then.
    """
    slo = ask.slo
    assert slo is not None
    ends_s = math.inf if left_s is None else time.monotonic() + left_s
    start = ask.rate_per_s or 1.0 / met.unloaded_s
    rules = Rules(
        start_per_s=start,
        precision=ask.precision,
        repeats=ask.repeats,
        least_per_s=min(start / 2.0, APART / met.unloaded_s),
    )
    wanted = max(math.ceil(BEYOND_QUANTILE / (1.0 - max(target.quantile for target in slo.targets))), LEAST_REQUESTS)
    expected = windows_expected(rules)
    most_s = math.inf if left_s is None else left_s / expected
    about_s = sum(_window_s(rules.start_per_s * 2.0**n, wanted, most_s) for n in (0, 1, 2)) / 3 * expected
    narrator.found(
        f"searching the highest rate at which {slo} holds: about {count(expected, 'window')}, "
        f"{max(1.0, min(about_s, left_s or math.inf) / 60.0):.0f} min, at most {count(rules.most_windows, 'window')}"
    )
    outcomes: dict[float, list[bool | None]] = {}
    windows: list[Window] = []
    rows: list[Row] = []
    kept: dict[float, Conducted] = {}
    limit: Limit | None = None
    narrator.phase("searching", expected)
    while limit is None and (rate := next_rate(outcomes, rules)) is not None:
        lasts_s = _window_s(rate, wanted, most_s)
        if time.monotonic() + min(lasts_s, LEAST_WINDOW_S) > ends_s:
            limit = "budget"
            break
        seed = ask.seed * 1000 + len(windows)
        try:
            done, window = await _window(ask, met, items, shape, rate, seed, lasts_s, ends_s)
            rows += rows_of(len(windows), done.run.started_s, done.run.warm_up, done.run.records, items)
            windows.append(window)
            outcomes.setdefault(rate, []).append(window.met)
            if window.met is not None or rate not in kept:
                kept[rate] = done
            narrator.step(_told(window))
            if done.run.stopped and done.early is None:
                limit = "stopped"
            elif window.met is False:  # what was given up may still be computed
                patience_s = min(SETTLE_S, max(1.0, ends_s - time.monotonic()))
                if await settle(met, items[0], patience_s) is None:
                    limit = "server"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            limit = "stopped"
    if not kept:
        raise Unavailable("the search ended before its first window did; give it a longer --budget")
    found = bracket(outcomes)
    shown = kept[found.low] if found.low is not None else kept[min(kept)]
    measurement = Measurement(
        netgain=importlib.metadata.version("netgain"),
        source=Source(tool="netgain", version=importlib.metadata.version("netgain")),
        began_unix_s=shown.began_unix_s,
        ended_unix_s=shown.ended_unix_s,
        stopped=_stopped(shown),
        unfinished=len(shown.run.unfinished_sent_s),
        server=met.server,
        prompts=Prompts(name=None),
        load=load_for(ask, met, shown.run.arrivals, shown.extent),
        summary=shown.summary,
        client=shown.run.client,
        server_side=shown.server_side,
        saturation=conclude(str(slo), outcomes, windows, limit or _why_ended(outcomes, rules)),
    )
    return measurement, rows


def _why_ended(outcomes: dict[float, list[bool | None]], rules: Rules) -> Limit:
    found = bracket(outcomes)
    if sum(map(len, outcomes.values())) >= rules.most_windows:
        return "windows"
    if any(judged(seen)[1] == 0 for seen in outcomes.values()):
        return "client"
    return "range" if found.low is None or found.high is None else "precision"


def _stopped(shown: Conducted) -> str | None:
    if not shown.run.stopped:
        return None
    return "interrupted" if shown.early is None else f"{shown.early} was out of reach"


def conclude(slo: str, outcomes: dict[float, list[bool | None]], windows: Sequence[Window], limit: Limit) -> Saturation:
    """What the windows allow to say."""
    found = bracket(outcomes)
    goodput = [
        window.goodput_per_s
        for window in windows
        if window.rate_per_s == found.low and window.met is not None and window.goodput_per_s is not None
    ]
    low, high = found.low, found.high
    low_met = None if low is None else judged(outcomes[low])
    high_met = None if high is None else judged(outcomes[high])
    if low_met is not None and high_met is not None:
        text = (
            f"{slo} holds up to a rate between {low:.3g} and {high:.3g} requests/s "
            f"({low_met[0]} of {count(low_met[1], 'window')} met it below, {high_met[0]} of {high_met[1]} above)"
        )
    elif low_met is not None:
        text = (
            f"not bracketed: {slo} holds at {low:.3g} requests/s ({low_met[0]} of {count(low_met[1], 'window')}); "
            "the rate at which it fails was not found"
        )
    elif high_met is not None:
        text = f"not bracketed: {slo} fails already at {high:.3g} requests/s; no rate was found at which it holds"
    else:
        text = f"not bracketed: no window could be judged for {slo}"
    return Saturation(
        slo=slo,
        low_per_s=low,
        high_per_s=high,
        low_met=low_met,
        high_met=high_met,
        goodput_per_s=sum(goodput) / len(goodput) if goodput else None,
        limit=limit,
        text=text + _because(outcomes, limit),
        windows=tuple(windows),
    )


def _because(outcomes: dict[float, list[bool | None]], limit: Limit) -> str:
    found = bracket(outcomes)
    match limit:
        case "precision":
            return ""
        case "budget":
            return ". The time ended before the search: more --budget narrows it"
        case "server":
            return ". It ended early: after its last window the server no longer answered a single request"
        case "stopped":
            return ". It was interrupted before it was as narrow as asked"
        case "windows":
            return ". The windows contradicted each other too often to go on: the server, or what else runs there, is uneven"
        case "range" if found.low is None:
            return ". Requests hardly meet at that rate, so a lower one does not help: the server is too slow for a request alone"
        case "range":
            return ". The search left the range of rates"
        case "client":
            rate = min(rate for rate, seen in outcomes.items() if judged(seen)[1] == 0)
            beyond = found.high is None
            return (
                f". At {rate:.3g} requests/s the client was the bottleneck in {count(len(outcomes[rate]), 'window')}, "
                + ("so the server may do more" if beyond else "so the search could not narrow it further")
            )


def _window_s(rate: float, wanted: int, most_s: float) -> float:
    return min(max(wanted / rate, LEAST_WINDOW_S), max(most_s, LEAST_REQUESTS / rate))


def drawn_at(shape: OpenLoop, rate: float, seed: int, warm_up: int, requests: int) -> OpenLoop:
    """Arrivals of which `requests` after `warm_up` really come at `rate`: of 60 Poisson arrivals the rate varies by 13 %,
    which a search would mistake for the server's doing. Drawn again from other seeds until it is so (a Poisson process given
    its count)."""
    if not isinstance(shape, Poisson | Bursty) or requests < 2:
        return at_rate(shape, rate, seed)
    nearest, best = math.inf, at_rate(shape, rate, seed * _DRAWS)
    for draw in range(_DRAWS):
        arrivals = at_rate(shape, rate, seed * _DRAWS + draw)
        offsets = arrivals.offsets_s(warm_up + requests)
        off = abs((offsets[-1] - offsets[warm_up]) * rate / (requests - 1) - 1.0)
        if off < nearest:
            nearest, best = off, arrivals
        if off < EVEN_RATE:
            break
    return best


def patience_s(slo: SLO, met: Met, items: Sequence[Item]) -> float:
    """How long after the last request is due a window waits: by then a request that is not done has missed the SLO."""
    tokens = max(item.max_tokens for item in items)
    limits = {target.metric: target.limit_s for target in slo.targets}
    gap_s = limits.get("itl", limits.get("tpot"))
    whole_s = limits.get("e2e", math.inf if gap_s is None else limits.get("ttft", gap_s) + tokens * gap_s)
    return min(
        met.options.timeout_s,
        max(10.0, 3.0 * met.unloaded_s, whole_s if math.isfinite(whole_s) else 20.0 * met.unloaded_s),
    )


async def _window(
    ask: Ask, met: Met, items: Sequence[Item], shape: OpenLoop, rate: float, seed: int, lasts_s: float, ends_s: float
) -> tuple[Conducted, Window]:
    slo = ask.slo
    assert slo is not None
    requests = max(LEAST_REQUESTS, round(rate * lasts_s))
    warm_up = ramp(at_rate(shape, rate, seed), met.unloaded_s, ask.warm_up_s)
    arrivals = drawn_at(shape, rate, seed, warm_up, requests)
    extent = Extent(warm_up=warm_up, requests=requests)
    needs_s = arrivals.offsets_s(warm_up + requests)[-1] + patience_s(slo, met, items)
    left_s = max(1.0, ends_s - time.monotonic())
    done = await conduct(
        met, items, arrivals, extent, slo, lasts_s, give_up=True, tag=f"-{seed}", ends_within_s=min(needs_s, left_s)
    )
    summary = done.summary
    verdict, why = _judge(done, cut=left_s < needs_s)
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


def _judge(done: Conducted, cut: bool) -> tuple[bool | None, str]:
    """`cut`: the search's own time might have ended the window."""
    summary: Summary = done.summary
    if done.run.stopped and done.early is None:
        return None, "it was interrupted"
    if summary.void is not None:
        return None, summary.void
    if cut and (ErrorKind.DEADLINE in summary.errors or done.run.unscheduled):
        return None, "the time of the search ended within it"
    if done.early is not None:
        return False, f"{done.early} was out of reach after {count(summary.requests, 'request')}"
    for target in summary.slo_targets:
        if target.met is not True:
            return False, f"{target.target} was {format_seconds(target.value_s)}"
    if growing(done.run):
        return False, "ever more requests were in flight"
    return True, "all targets held"


def _told(window: Window) -> str:
    verdict = {True: "holds", False: "fails", None: "cannot be judged"}[window.met]
    return f"{window.rate_per_s:.3g}/s {verdict}: {window.why}"

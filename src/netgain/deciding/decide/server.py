"""What a running netgain server says about itself: its model, its configuration's identity, and what its steps cost."""

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from netgain.cost.roofline import StepCounts, StepWork
from netgain.cost.step_cost import StepCost, StepPoint
from netgain.errors import Unavailable, UsageError

STEP_COST_BUDGET_S = 3.0
STEP_COST_CALLS = 5
STEP_COST_TIMEOUT_S = 60.0
CARD_TIMEOUT_S = 10.0
IDLE_WAIT_S = 15.0  # an answer that was just cut short may still hold the engine
RETRY_S = 0.3


class _Card(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None
    netgain: dict[str, object] = {}


class _Cards(msgspec.Struct, frozen=True):
    data: list[_Card]


class Served(msgspec.Struct, frozen=True):
    """The name to ask for, what the server tells about model and engine, and what its steps have to do (None: it does not
    tell)."""

    name: str
    told: dict[str, str]
    work: StepWork | None


async def served_model(url: str, headers: Mapping[str, str]) -> Served:
    """What is served there. `headers`: such as an API key, as everywhere here. Raises Unavailable."""
    try:
        timeout = aiohttp.ClientTimeout(total=CARD_TIMEOUT_S)
        session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        async with session, session.get(f"{url}/v1/models") as response:
            cards = msgspec.json.decode(await response.read(), type=_Cards).data
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, RecursionError) as error:
        raise Unavailable(f"{url}/v1/models did not answer with a list of models ({error!r})") from error
    if not cards:
        raise Unavailable(f"{url} serves no model")
    told = {name: _text(value) for name, value in cards[0].netgain.items()}
    try:
        work = msgspec.convert(cards[0].netgain, StepWork)
    except msgspec.ValidationError:
        work = None
    told = {"model": cards[0].id, "max_model_len": _text(cards[0].max_model_len), **told}
    return Served(cards[0].id, told, work)


async def step_counts(url: str, headers: Mapping[str, str]) -> StepCounts | None:
    """The steps that the server's engines have run so far, up to a heartbeat ago; None when it does not tell."""
    try:
        timeout = aiohttp.ClientTimeout(total=CARD_TIMEOUT_S)
        session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        async with session, session.get(f"{url}/metrics") as response:
            text = (await response.read()).decode()
        sums: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] += sample.value
        if "netgain_decode_only_steps_total" not in sums:
            return None
        return StepCounts(
            decode_steps=int(sums["netgain_decode_only_steps_total"]),
            decode_s=sums["netgain_decode_only_seconds_total"],
            decode_context_tokens=int(sums["netgain_decode_only_context_tokens_total"]),
            prefill_steps=int(sums["netgain_prefill_only_steps_total"]),
            prefill_s=sums["netgain_prefill_only_seconds_total"],
            prefill_tokens=int(sums["netgain_prefill_only_tokens_total"]),
            prefill_chosen=int(sums["netgain_prefill_only_chosen_tokens_total"]),
        )
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


async def measure_step_cost(url: str, headers: Mapping[str, str], batch: int) -> tuple[StepCost | None, str | None]:
    """The engine's own measurement of its steps for up to `batch` requests together, or the reason why there is none. Waits
    for the engine to be idle.

    Asked for several times and joined, since the machine drifts between calls.
    """
    curves: list[StepCost] = []
    reason: str | None = None
    deadline_s = time.monotonic() + IDLE_WAIT_S
    try:
        timeout = aiohttp.ClientTimeout(total=STEP_COST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            while len(curves) < STEP_COST_CALLS:
                query = {"budget_s": str(STEP_COST_BUDGET_S), "fresh": "true", "batch": str(batch)}
                async with session.get(f"{url}/netgain/step-cost", params=query) as response:
                    body = await response.read()
                if response.status == HTTPStatus.OK:
                    curves.append(StepCost.from_json(body))
                    continue
                reason = f"the server answered {response.status}: {body[:200].decode(errors='replace')}"
                if response.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline_s:
                    break
                await asyncio.sleep(RETRY_S)
    except (aiohttp.ClientError, OSError, TimeoutError, UsageError) as error:
        reason = f"it could not be measured ({error!r})"
    return (join(curves), None) if curves else (None, reason)


def join(curves: Sequence[StepCost]) -> StepCost:
    """One curve of several: per point the lower quartile of those that measured it.

    Other work on the machine only ever adds to a step's time, and rarely to all steps alike, so that the less disturbed
    measurements give the truer ratios between widths.
    """
    found: dict[tuple[int, int, int], list[StepPoint]] = defaultdict(list)
    for curve in curves:
        for point in curve.points:
            found[point.batch, point.tokens, point.context].append(point)
    points = []
    for (batch, tokens, context), measured in sorted(found.items()):
        seconds = [point.seconds for point in measured]
        quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else None
        points.append(
            StepPoint(
                batch=batch,
                tokens=tokens,
                context=context,
                seconds=sorted(seconds)[(len(seconds) - 1) // 4],
                low_s=None if quartiles is None else quartiles[0],
                high_s=None if quartiles is None else quartiles[2],
                repeats=sum(point.repeats for point in measured),
            )
        )
    missing = {place for curve in curves for place in curve.unmeasured} - set(found)
    return StepCost(
        points=tuple(points),
        subject=curves[0].subject,
        unmeasured=tuple(sorted(missing)),
        measured_at=curves[-1].measured_at,
    )


def whole_number(told: str | None) -> int | None:
    """A count that a server tells of itself; None where it does not."""
    return int(told) if told is not None and told.isdigit() else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

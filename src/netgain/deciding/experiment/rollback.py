"""When to go back: a rule that a deployed service's own counters can answer, fixed together with the verdict."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from netgain.deciding.experiment.guards import Guard
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.workload.slo import Metric

WINDOW_REQUESTS = 100


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per output token after the first, all tokens of all requests together, at one load.

    `in_flight`: requests in flight on average while the baseline was measured. `threshold_s`: above it, go back."""

    in_flight: float
    baseline_s: float
    candidate_s: float
    threshold_s: float


class TailLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A guard of the verdict, to be held by the deployed service too: this quantile (share of requests; of tokens for `itl`)."""

    metric: Metric
    share: float
    limit_s: float
    basis: str


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """Go back when `metric` of a window exceeds the threshold for its load, or a tail its limit.

    A window is `window_requests` ended requests (where the server counts none: `window_tokens` output tokens). `paces` ascend
    by load; between two of them the threshold lies in between, in proportion. `most_in_flight`: beyond it the technique was
    not shown to pay. A mean, because a mean can be read off counters exactly, and a median off a histogram cannot.
    """

    metric: str = "mean seconds per output token after the first"
    window_requests: int = WINDOW_REQUESTS
    window_tokens: int | None
    paces: tuple[Pace, ...]
    tails: tuple[TailLimit, ...]
    most_in_flight: float | None = None
    says: str


def rollback_rule(
    loads: Sequence[Sequence[Observation]],
    noise_floor: float | None,
    guards: Sequence[Guard],
    most_in_flight: float | None = None,
) -> Rollback | None:
    """One entry of `loads` per load that was measured, with the guards of all of them; `noise_floor` as a log ratio. None:
    nothing is known to go back to."""
    paces = tuple(
        sorted((pace for seen in loads if (pace := _pace(seen, noise_floor or 0.0))), key=lambda p: p.in_flight)
    )
    if not paces:
        return None
    counts = [
        seen.record.output_tokens
        for load in loads
        for seen in load
        if seen.arm == BASELINE and seen.record.ok and seen.record.output_tokens is not None
    ]
    tokens = round(WINDOW_REQUESTS * sum(counts) / len(counts)) if counts else None
    tails = tuple(_limits(guards))
    return Rollback(
        window_tokens=tokens,
        paces=paces,
        tails=tails,
        most_in_flight=most_in_flight,
        says=_says(paces, tails, most_in_flight),
    )


def _says(paces: Sequence[Pace], tails: Sequence[TailLimit], most: float | None) -> str:
    each = ", ".join(
        f"{pace.threshold_s * 1e3:.2f} ms" + (f" at {pace.in_flight:.3g} in flight" if len(paces) > 1 else "")
        for pace in paces
    )
    baseline = paces[0].baseline_s * 1e3
    told = f"Go back when {WINDOW_REQUESTS} consecutive requests take on average more than {each} per output token"
    told += f" (the baseline took {baseline:.2f} ms)" if len(paces) == 1 else ", so that no gain is left"
    for tail in tails:
        told += f"; or when the p{tail.share * 100:g} of {tail.metric} exceeds {tail.limit_s * 1e3:.1f} ms"
    if most is not None:
        told += f"; or when more than {most:.3g} requests are in flight on average, where it was not shown to pay"
    return told + "."


def _pace(observations: Sequence[Observation], noise: float) -> Pace | None:
    before, after = (
        per_token_s(seen.record for seen in observations if seen.arm == arm) for arm in (BASELINE, CANDIDATE)
    )
    in_flight = mean_in_flight(observations, BASELINE)
    if before is None or after is None or in_flight is None:
        return None
    # one that gains elsewhere may here only not lose more than was measured
    threshold = max(before / math.exp(noise), math.sqrt(before * after)) if after < before else after * math.exp(noise)
    return Pace(in_flight=in_flight, baseline_s=before, candidate_s=after, threshold_s=threshold)


def per_token_s(records: Iterable[ClientRecord]) -> float | None:
    """Time after the first chunk over tokens after the first chunk, of all requests that succeeded together."""
    spent = tokens = 0.0
    for record in records:
        if record.ok and record.tpot_s is not None:
            spent += record.chunk_times_s[-1] - record.chunk_times_s[0]
            tokens += sum(record.chunk_tokens[1:])
    return spent / tokens if tokens else None


def mean_in_flight(observations: Sequence[Observation], arm: str) -> float | None:
    """By Little's law, over the arm's blocks; None without a successful request."""
    spans: dict[int, list[float]] = defaultdict(list)
    busy = 0.0
    for seen in observations:
        if seen.arm == arm and seen.record.ok:
            spans[seen.block] += [seen.record.scheduled_s, seen.record.finished_s]
            busy += seen.record.e2e_s
    wall = sum(max(span) - min(span) for span in spans.values())
    return busy / wall if wall > 0.0 else None


def _limits(guards: Sequence[Guard]) -> list[TailLimit]:
    """Guards on tails whose limit is known and that the candidate held; others could not be a reason to go back. Of several
    loads the most generous: a tail that was fine at the highest of them is no reason to go back."""
    found: dict[tuple[Metric, float], TailLimit] = {}
    for guard in guards:
        if guard.metric is None or guard.quantile is None or guard.limit is None or guard.state != "held":
            continue
        key = guard.metric, guard.quantile
        if key not in found or guard.limit > found[key].limit_s:
            found[key] = TailLimit(metric=guard.metric, share=guard.quantile, limit_s=guard.limit, basis=guard.basis)
    return list(found.values())

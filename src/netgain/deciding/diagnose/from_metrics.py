"""Mean time per stage from an engine's own metrics, for engines that send no account with each answer."""

import statistics
from collections.abc import Iterable, Sequence

from netgain.deciding.technique.decomposition import Decomposition
from netgain.errors import UsageError
from netgain.ledger.stage import ClientStage, Stage
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.scrape import Observed

# llama.cpp counts seconds, of which each request's part is a mean over requests
_SECONDS = {"prefill": "llamacpp:prompt_seconds_total", "decode": "llamacpp:tokens_predicted_seconds_total"}


def decompose_by_metrics(records: Iterable[ClientRecord], seen: Observed) -> Decomposition:
    """Decompose the successful requests of one window by what the metrics gained in it: vLLM tells queue, prefill and decode
    (a transfer of KV is inside its queue time, lost work of preemption inside the other two), SGLang the queue, llama.cpp
    prompts and decode. What an engine does not tell is in `not_measured`. Raises UsageError when no request succeeded.
    """
    seen_all = list(records)
    good = [record for record in seen_all if record.ok and record.ttft_s is not None]
    if not good:
        failed = next((record.error for record in seen_all if record.error), None)
        raise UsageError(
            f"none of {len(seen_all)} requests succeeded" + (f"; the first failure: {failed}" if failed else "")
        )
    e2e_s = statistics.fmean(record.e2e_s for record in good)
    lateness_s = statistics.fmean(record.lateness_s for record in good)
    told = {name: _seconds(seen, name, len(good)) for name in ("queue", "prefill", "decode", "ttft", "e2e")}
    server_s, network_s = e2e_s - lateness_s, None
    if told["e2e"] is not None and told["e2e"] <= server_s:
        network_s = server_s - told["e2e"]
        server_s = told["e2e"]
    first_s = statistics.fmean(record.ttft_s or 0.0 for record in good) - lateness_s
    first_s = min(server_s, first_s if told["ttft"] is None or network_s is None else told["ttft"])
    before = _tiled(first_s, {Stage.QUEUED: told["queue"], Stage.PREFILL: told["prefill"]})
    after = _tiled(server_s - first_s, {Stage.DECODE: told["decode"]})
    known = {
        stage
        for stage, name in ((Stage.QUEUED, "queue"), (Stage.PREFILL, "prefill"), (Stage.DECODE, "decode"))
        if told[name] is not None
    }
    client = {ClientStage.LATENESS: lateness_s, ClientStage.SERVER: server_s}
    if network_s is not None:
        client[ClientStage.NETWORK] = network_s
    return Decomposition(
        requests=len(good),
        dropped=len(seen_all) - len(good),
        e2e_s=e2e_s,
        client_s=client,
        ttft_stages=before,
        decode_stages=after,
        prompt_tokens=_mean([record.prompt_tokens for record in good]) or 0.0,
        cached_tokens=_mean([record.cached_tokens for record in good]),
        output_tokens=_mean([record.output_tokens for record in good]) or 0.0,
        not_measured=tuple(stage for stage in Stage if stage is not Stage.UNATTRIBUTED and stage not in known),
        network_within=network_s is None,
    )


def _seconds(seen: Observed, name: str, requests: int) -> float | None:
    figure = seen.figures.get(name)
    if figure is not None and figure.mean is not None:
        return figure.mean
    counter = _SECONDS.get(name)
    gained = None if seen.window is None or counter is None else seen.window.gained(counter)
    return None if gained is None else gained / requests


def _tiled(whole_s: float, told: dict[Stage, float | None]) -> dict[Stage, float]:
    """What is told, never more than the whole, and the rest as UNATTRIBUTED."""
    known = {stage: seconds for stage, seconds in told.items() if seconds is not None}
    scale = min(1.0, whole_s / sum(known.values())) if sum(known.values()) > 0.0 else 1.0
    tiled = {stage: seconds * scale for stage, seconds in known.items() if seconds > 0.0}
    rest = whole_s - sum(tiled.values())
    return {**tiled, Stage.UNATTRIBUTED: rest} if rest > 1e-9 else tiled


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None

"""Mean time per stage of a measured baseline, split at the first token."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from netgain.deciding.technique.decomposition import Decomposition
from netgain.errors import UsageError
from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import ClientStage, Stage
from netgain.measuring.client.record import ClientRecord


def decompose(records: Iterable[ClientRecord]) -> Decomposition:
    """Decompose the successful requests whose server record tells its stages to the first token.

    Raises UsageError when there is none.
    """
    seen = list(records)
    pairs: list[tuple[ClientRecord, RequestRecord, dict[ClientStage, float]]] = []
    for record in seen:
        around = record.client_stages()
        if record.server is not None and record.server.ttft_stages is not None and around is not None:
            pairs.append((record, record.server, around))
    if not pairs:
        failed = next((record.error for record in seen if record.error), None)
        why = f"; the first failure: {failed}" if failed else ""
        raise UsageError(f"none of {len(seen)} requests came back with the server's account of its stages{why}")
    client: dict[ClientStage, float] = defaultdict(float)
    ttft: dict[Stage, float] = defaultdict(float)
    decode: dict[Stage, float] = defaultdict(float)
    vote = 1.0 / len(pairs)
    for _, server, around in pairs:
        for place, seconds in around.items():
            client[place] += vote * seconds
        until_first = server.ttft_stages or {}
        for stage, seconds in server.stages.items():
            ttft[stage] += vote * until_first.get(stage, 0.0)
            decode[stage] += vote * (seconds - until_first.get(stage, 0.0))
    return Decomposition(
        requests=len(pairs),
        dropped=len(seen) - len(pairs),
        e2e_s=sum(record.e2e_s for record, _, _ in pairs) * vote,
        client_s=dict(client),
        ttft_stages=_present(ttft),
        decode_stages=_present(decode),
        prompt_tokens=sum(server.prompt_tokens for _, server, _ in pairs) * vote,
        cached_tokens=_mean([server.cached_tokens for _, server, _ in pairs]),
        output_tokens=sum(server.output_tokens for _, server, _ in pairs) * vote,
        own_s=_mean([server.own_s for _, server, _ in pairs]),
        stall_s=_mean([server.stall_s for _, server, _ in pairs]),
    )


def _present(stages: dict[Stage, float]) -> dict[Stage, float]:
    return {stage: stages[stage] for stage in Stage if stages.get(stage)}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean where every request knows its value; unknown is not zero."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None

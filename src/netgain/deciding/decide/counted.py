"""What an engine's own counters say of drafting: for engines that send no account with each answer."""

from collections.abc import Iterable, Mapping, Sequence

from netgain.deciding.experiment.agreement import Counted
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Figure


def committed_per_step(
    figures: Mapping[str, Figure], counted: Iterable[Counted], records: Sequence[ClientRecord]
) -> float | None:
    """Tokens after the first over the steps they took, each of which commits one token and what was accepted. `figures`: what
    the counters gained while the server answered `records`; `counted`: those that the client counted as well. None when
    nothing was drafted, or when it is not known.

    A server counts drafts as accepted that lie behind an answer's end. Where the client saw what was accepted, its count is
    taken; else there were at least as many steps as had drafts.
    """
    accepted, output, drafts = (
        figures[name].gained if name in figures else None
        for name in ("accepted_tokens", "output_tokens", "draft_steps")
    )
    seen = next((row.client for row in counted if row.figure == "accepted_tokens"), None)
    accepted = accepted if seen is None else seen
    requests = sum(record.ok for record in records)
    if not accepted or output is None or not requests:
        return None
    later = output - requests
    steps = max(later - accepted, drafts or 0.0)
    return later / steps if steps > 0.0 else None

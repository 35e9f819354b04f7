"""What an engine's own counters say of drafting: for engines that send no account with each answer."""

from collections.abc import Mapping, Sequence

from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Figure


def committed_per_step(figures: Mapping[str, Figure], records: Sequence[ClientRecord]) -> float | None:
    """Tokens after the first over the steps they took, each of which commits one token and what was accepted. `figures`: what
    the counters gained while the server answered `records`; None when nothing was drafted, or when it is not known."""
    accepted, output = (
        figures[name].gained if name in figures else None for name in ("accepted_tokens", "output_tokens")
    )
    requests = sum(record.ok for record in records)
    if not accepted or output is None or not requests:
        return None
    later = output - requests
    steps = later - accepted
    return later / steps if steps > 0.0 else None

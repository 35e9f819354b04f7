"""What an engine's own counters say of drafting, over all starts of the candidate's server: for engines that send no account
with each answer."""

from collections.abc import Iterable

from netgain.deciding.experiment.arm import Arm
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.names import engine_of, figures
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.observe.window import observed


class DraftLog:
    """Adds up what the counters gained between `begin` and `end`, which warm-up requests are in. Unknown once, unknown for
    good."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self.accepted: float | None = 0.0
        self.output_tokens: float | None = 0.0

    async def begin(self, arm: Arm) -> None:
        self._before = await snapshot(f"{arm.url}/metrics")

    async def end(self, arm: Arm) -> None:
        after = await snapshot(f"{arm.url}/metrics")
        window = None if self._before is None or after is None else observed((self._before, after))
        engine = None if after is None else engine_of(set(after.families))
        found = {} if window is None or engine is None else figures(window, engine)
        accepted, output = (
            found[name].gained if name in found else None for name in ("accepted_tokens", "output_tokens")
        )
        self.accepted = None if self.accepted is None or accepted is None else self.accepted + accepted
        self.output_tokens = None if self.output_tokens is None or output is None else self.output_tokens + output

    def committed_per_step(self, records: Iterable[ClientRecord]) -> float | None:
        """Tokens after the first over the steps they took, each of which commits one token and what was accepted. `records`:
        the requests that were counted; None when nothing was drafted, or when it is not known."""
        requests = sum(record.ok for record in records)
        if not self.accepted or self.output_tokens is None or not requests:
            return None
        later = self.output_tokens - requests
        steps = later - self.accepted
        return later / steps if steps > 0.0 else None

"""What an engine's own counters say of drafting, over all starts of the candidate's server: for engines that send no account
with each answer."""

import time
from collections.abc import Iterable

import aiohttp

from netgain.deciding.experiment.arm import Arm
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.exposition import Snapshot, read_exposition
from netgain.measuring.observe.names import engine_of, figures
from netgain.measuring.observe.window import observed

TIMEOUT_S = 10.0


class DraftLog:
    """Adds up what the counters gained between `begin` and `end`, which warm-up requests are in. Unknown once, unknown for
    good."""

    def __init__(self) -> None:
        self._before: Snapshot | None = None
        self.accepted: float | None = 0.0
        self.output_tokens: float | None = 0.0

    async def begin(self, arm: Arm) -> None:
        self._before = await scrape(arm.url)

    async def end(self, arm: Arm) -> None:
        after = await scrape(arm.url)
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


async def scrape(url: str) -> Snapshot | None:
    """The server's metrics now; None where it tells none."""
    try:
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        async with session, session.get(f"{url}/metrics") as response:
            text = (await response.read()).decode(errors="replace")
            return read_exposition(text, time.monotonic()) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None

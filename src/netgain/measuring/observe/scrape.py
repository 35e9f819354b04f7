"""Scrapes a server's metrics at the two ends of a window and in between.

Texts are kept as they came and read after the window, so that reading them does not delay the client's stamps.
"""

import asyncio
import math
import time
import zlib
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec

from netgain.measuring.observe.exposition import Snapshot, of_model, read_exposition
from netgain.measuring.observe.names import Engine, Figure, engine_of, figures
from netgain.measuring.observe.window import ServerWindow, observed

INTERVAL_S = 1.0
MOST_SCRAPES = 400
_PATIENCE_S = 5.0
_AS_TEXT = {"Accept": "text/plain;version=0.0.4"}
_LARGEST_BYTES = 64 * 2**20


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The server's side of a window, or in `absent` why there is none.

    `figures`: what the metrics mean, by name, for engines that are known; `window` has everything under the server's own
    names. `uncertain_s`: how long the slower scrape of the two ends took, so by how much those ends are uncertain.
    """

    url: str
    engine: Engine | None = None
    uncertain_s: float | None = None
    figures: dict[str, Figure] = {}
    window: ServerWindow | None = None
    absent: str | None = None


async def snapshot(
    url: str, headers: Mapping[str, str] | None = None, patience_s: float = _PATIENCE_S
) -> Snapshot | None:
    """One scrape of `url`, now; None when it does not answer in time, or not with 200."""
    try:
        wanted = {**(headers or {}), **_AS_TEXT}
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience_s), headers=wanted)
        async with session, session.get(url) as response:
            body = await _whole(response) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    return None if body is None else read_exposition(body.decode("utf-8", "replace"), time.monotonic())


class Watch:
    """Scrapes `url` from `begin` to `end`. `headers`: sent with each scrape. `expected_s`: how long that will take; infinite
    for only the two ends and each `look`. `model`: the one that is measured; figures leave out series that name another. Never
    raises for what the server does."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        expected_s: float = 60.0,
        model: str | None = None,
    ) -> None:
        self.url = url
        self._model = model
        self._headers = {**(headers or {}), **_AS_TEXT}
        self._interval_s = max(INTERVAL_S, expected_s / MOST_SCRAPES)
        self._texts: list[tuple[float, float, bytes]] = []  # when, how long it took, zlib
        self._missed = 0
        self._failure: str | None = None
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """The window begins: one scrape now, then one at each interval."""
        # a connection of its own for each scrape: none is reused while the server closes it
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_PATIENCE_S))
        await self._scrape()
        if self._texts and math.isfinite(self._interval_s):
            self._task = asyncio.create_task(self._repeat(), name="metrics scraper")

    async def look(self) -> None:
        """One scrape more, now; after `begin`."""
        await self._scrape()

    async def end(self) -> Observed:
        """The window ends: one last scrape, and what all of them say. Call it once, after `begin`."""
        began = len(self._texts)
        await self._stop()
        if began:
            await self._scrape()
        await self.close()
        return self._read(ended=len(self._texts) > began)

    async def close(self) -> None:
        """Stop without a result. May be called twice."""
        await self._stop()
        if self._session is not None:
            await self._session.close()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._scrape()

    async def _scrape(self) -> None:
        assert self._session is not None
        asked_s = time.monotonic()
        try:
            async with self._session.get(self.url, headers=self._headers) as response:
                if response.status != 200:
                    self._miss(f"status {response.status}")
                    return
                body = await _whole(response)
                if body is None:
                    self._miss(f"more than {_LARGEST_BYTES // 2**20} MiB")
                    return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._miss(str(error) or type(error).__name__)
            return
        answered_s = time.monotonic()
        self._texts.append(((asked_s + answered_s) / 2.0, answered_s - asked_s, zlib.compress(body, 1)))

    def _miss(self, reason: str) -> None:
        self._missed += 1
        self._failure = reason

    def _read(self, ended: bool) -> Observed:
        if not self._texts:
            return Observed(url=self.url, absent=f"{self.url} could not be read: {self._failure}")
        if not ended:
            return Observed(url=self.url, absent=f"{self.url} could not be read at the window's end: {self._failure}")
        snapshots = [
            read_exposition(zlib.decompress(text).decode("utf-8", "replace"), at_s) for at_s, _, text in self._texts
        ]
        names = {name for snapshot in snapshots for name in snapshot.families}
        if not names:
            return Observed(url=self.url, absent=f"{self.url} answered, but not with Prometheus metrics")
        window = observed(snapshots, self._missed)
        assert window is not None
        engine = engine_of(names)
        return Observed(
            url=self.url,
            engine=engine,
            uncertain_s=max(self._texts[0][1], self._texts[-1][1]),
            figures={} if engine is None else figures(self._own(snapshots) or window, engine),
            window=window,
        )

    def _own(self, snapshots: Sequence[Snapshot]) -> ServerWindow | None:
        """The window of the measured model alone."""
        if self._model is None:
            return None
        return observed([of_model(snapshot, self._model) for snapshot in snapshots], self._missed)


async def _whole(response: aiohttp.ClientResponse) -> bytes | None:
    """The body to its end, which one read need not bring: a page cut short looks like counters that are gone."""
    parts, size = list[bytes](), 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _LARGEST_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)

"""A server that somebody else runs as an arm: asked, never started, never stopped."""

import asyncio
import time
from collections.abc import Mapping

import aiohttp

from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.arms.health import health_failure
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.errors import Unavailable
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.observe.names import Engine

POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0


class AttachedServer:
    """Any OpenAI-compatible server at `url`. `engine`: which it is, to know how its caches are reset (None: unknown).

    `may_reset` False leaves its caches alone, as on a server that others use. `headers` go with every request (an API key).
    """

    def __init__(
        self,
        name: str,
        url: str,
        engine: Engine | None = None,
        may_reset: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._url = base_url(url)
        self._engine = engine
        self._may_reset = may_reset
        self.headers: Mapping[str, str] = headers or {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        return self._url

    @property
    def command(self) -> tuple[str, ...]:
        """None is known: the URL stands for it."""
        return (self._url,)

    async def start(self) -> None:
        return

    async def ready(self, timeout_s: float) -> None:
        """Until it lists its models, which every OpenAI-compatible server does."""
        deadline_s = time.monotonic() + timeout_s
        where = f"{self._url}/v1/models"
        async with aiohttp.ClientSession(headers=self.headers) as session:
            while True:
                patience_s = min(PROBE_TIMEOUT_S, max(0.1, deadline_s - time.monotonic()))
                failure = await health_failure(session, where, patience_s, self._name)
                if failure is None:
                    return
                if time.monotonic() >= deadline_s:
                    raise Unavailable(
                        f"the {self._name} server did not answer within {timeout_s:g} s: {where} {failure}"
                    )
                await asyncio.sleep(POLL_S)

    async def reset(self) -> str:
        if not self._may_reset:
            return "the caches of a server that others run are left alone; prompts are salted where it knows salts"
        return (await ask_reset(self._url, self.headers, self._engine)).says

    def observe(self) -> Observed | None:
        return None

    async def stop(self) -> None:
        return

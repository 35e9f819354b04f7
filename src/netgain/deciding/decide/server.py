"""What a running netgain server says about itself: its model, its configuration's identity, and what its steps cost."""

import asyncio
import time
from http import HTTPStatus

import aiohttp
import msgspec

from netgain.cost.step_cost import StepCost
from netgain.errors import Unavailable, UsageError

STEP_COST_BUDGET_S = 4.0
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


async def served_model(url: str) -> tuple[str, dict[str, str]]:
    """The name to ask for, and what the server tells about model and engine. Raises Unavailable."""
    try:
        timeout = aiohttp.ClientTimeout(total=CARD_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/v1/models") as response:
            cards = msgspec.json.decode(await response.read(), type=_Cards).data
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise Unavailable(f"{url}/v1/models did not answer with a list of models ({error!r})") from error
    if not cards:
        raise Unavailable(f"{url} serves no model")
    told = {name: _text(value) for name, value in cards[0].netgain.items()}
    return cards[0].id, {"model": cards[0].id, "max_model_len": _text(cards[0].max_model_len), **told}


async def measure_step_cost(url: str) -> tuple[StepCost | None, str | None]:
    """The engine's own measurement of its steps, or the reason why there is none. Waits for the engine to be idle."""
    deadline_s = time.monotonic() + IDLE_WAIT_S
    try:
        timeout = aiohttp.ClientTimeout(total=STEP_COST_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                query = {"budget_s": str(STEP_COST_BUDGET_S)}
                async with session.get(f"{url}/netgain/step-cost", params=query) as response:
                    body = await response.read()
                if response.status == 200:
                    return StepCost.from_json(body), None
                if response.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline_s:
                    return None, f"the server answered {response.status}: {body[:200].decode(errors='replace')}"
                await asyncio.sleep(RETRY_S)
    except (aiohttp.ClientError, OSError, TimeoutError, UsageError) as error:
        return None, f"it could not be measured ({error!r})"


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()

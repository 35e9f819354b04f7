"""Without API keys no web page can have its visitor's browser ask for what touches everybody's requests."""

from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Scope

from netgain.ledger.clock import WallClock
from netgain.serving.api.auth import Authenticator
from netgain.serving.api.doorstep import Doorstep
from netgain.serving.api.keys import KeyLimits, new_key
from netgain.serving.api.lifecycle import Lifecycle
from netgain.serving.api.quota import Quotas

PURGE = "/netgain/cache/purge"
PAGES = [
    {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"},
    {"Origin": "null"},
    {"Origin": "http://rebound.example:8000", "Host": "rebound.example:8000", "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


async def status_of(path: str, headers: dict[str, str], keys: Authenticator | None = None, method: str = "POST") -> int:
    """Of the answer of an application that answers everything it is let see."""
    door = Doorstep(PlainTextResponse("done"), Lifecycle(), Quotas(WallClock()), keys, open_metrics=True)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"all=true",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    await door(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize("headers", PAGES)
async def test_a_page_is_refused(headers: dict[str, str]) -> None:
    assert await status_of(PURGE, headers) == 403
    assert await status_of("/netgain/step-cost", headers, method="GET") == 403
    assert await status_of("/netgain/settings", headers, method="GET") == 403
    assert await status_of("/v1/completions", headers) == 200


async def test_where_there_are_keys_a_page_that_has_one_is_as_good_as_anybody(tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys.json", "ops", KeyLimits(), operator=True)
    keys = Authenticator(tmp_path / "keys.json")
    assert await status_of(PURGE, PAGES[0], keys) == 401
    assert await status_of(PURGE, {**PAGES[0], "Authorization": f"Bearer {key}"}, keys) == 200


@pytest.mark.parametrize("headers", [{}, {"Host": "localhost:8000"}, {"Sec-Fetch-Site": "none"}])
async def test_what_is_no_page_is_served(headers: dict[str, str]) -> None:
    assert await status_of(PURGE, headers) == 200

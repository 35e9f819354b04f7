"""One look at whether a server answers its health check; one that wants a key will not answer by being waited for."""

import asyncio
from http import HTTPStatus

import aiohttp

from netgain.errors import UsageError

_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def health_failure(session: aiohttp.ClientSession, url: str, patience_s: float, arm: str) -> str | None:
    """None of a server that answers 200 within `patience_s`, else what it does, in words that follow its URL. `session` has the
    arm's headers. Raises UsageError where it refuses them, which no waiting changes. `arm`: whose server this is."""
    try:
        async with asyncio.timeout(patience_s), session.get(url) as response:
            status = response.status
    except TimeoutError:
        return f"takes longer than {patience_s:.1f} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"cannot be reached ({str(error) or type(error).__name__})"
    if status in _REFUSED:
        lacks = "wants a key" if not session.headers else "does not take the headers it was sent"
        raise UsageError(
            f"the {arm} server {lacks}: {url} answers {status}; netgain compare sends the right one with "
            '--header NAME=VALUE (such as --header "Authorization=Bearer KEY"); netgain decide asks only servers without keys'
        )
    return None if status == HTTPStatus.OK else f"answers {status}"

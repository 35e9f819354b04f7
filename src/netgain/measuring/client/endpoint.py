"""Which server is being measured: its base URL in one form, and whether it is netgain's own."""

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from netgain.errors import Unavailable, UsageError


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of /v1/models; netgain signs its entries as owner. `root`: vLLM's and SGLang's path of the weights; `meta`:
    llama.cpp's and `netgain` netgain's account of the model."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    root: str | None = None
    meta: dict[str, Any] | None = None
    netgain: dict[str, Any] | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


def base_url(url: str) -> str:
    """`http://host:port` with any path prefix, without the /v1 that the paths add. Raises UsageError."""
    try:
        parts = urlsplit(url.strip())
        usable = (
            parts.scheme in ("http", "https")
            and parts.hostname is not None
            and (parts.port is None or parts.port > 0)
            and url.strip().isprintable()  # also neither lone surrogates nor control characters
            and " " not in url.strip()
        )
    except ValueError:  # a port that is no number, a bracket that is not closed
        usable = False
    if not usable:
        raise UsageError(f"the server URL {url!r} cannot be used; write it as http://127.0.0.1:8000")
    if "@" in parts.netloc:
        raise UsageError("the server URL holds a password, which would be shown and kept; leave it out")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


async def list_models(session: aiohttp.ClientSession, base: str, timeout_s: float = 10.0) -> tuple[ModelCard, ...]:
    """The models that the server offers. Raises Unavailable when it does not answer with a list in `timeout_s`."""
    target = f"{base}/v1/models"
    try:
        async with asyncio.timeout(timeout_s), session.get(target) as response:
            body = await response.read()
            if response.status != 200:
                raise Unavailable(f"{target} answered with status {response.status}; check the URL and the API key")
        return tuple(msgspec.json.decode(body, type=_ModelList).data)
    except TimeoutError as error:
        raise Unavailable(f"{target} did not answer within {timeout_s:g} s; check that the server is up") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{target} cannot be reached ({error}); check that the server is up") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unavailable(
            f"{target} did not answer with a list of models ({error}); is it OpenAI-compatible?"
        ) from error


def joins_chunks(cards: Iterable[ModelCard]) -> bool:
    """Whether the server says that it takes chunks of prompts from where they were computed apart."""
    told = [(card.netgain or {}).get("blending") for card in cards]
    return any(isinstance(one, dict) and one.get("enabled") is True for one in told)


async def models_or_none(session: aiohttp.ClientSession, base: str) -> tuple[ModelCard, ...]:
    """What the server offers; nothing where it has no list of models, as other servers than netgain's may."""
    try:
        return await list_models(session, base)
    except Unavailable:
        return ()


def signed_by_netgain(cards: Iterable[ModelCard]) -> bool:
    return any(card.owned_by == "netgain" for card in cards)

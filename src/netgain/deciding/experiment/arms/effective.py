"""The configuration that a running engine really has, as far as it tells: what was asked for may have been changed."""

import re
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from netgain.measuring.observe.names import Engine
from netgain.secrecy import is_secret

TIMEOUT_S = 30.0
# SGLang: entrypoints/http_server.py; vLLM: entrypoints/serve/dev/server_info (with VLLM_SERVER_DEV_MODE=1)
ROUTES: Mapping[Engine, tuple[str, ...]] = {
    "netgain": ("/netgain/settings", "/v1/models"),  # the first to operators alone, where there are keys
    "vllm": ("/server_info?config_format=json", "/server_info"),
    "sglang": ("/get_server_info", "/server_info"),
    "llama.cpp": ("/props",),
}
_MOST_FIELDS = 5000
_ASSIGNMENT = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[^,()\[\]{}\s]+)")
_LOGGED = re.compile(r"non-default args: (\{.*\})|Initializing a V1 LLM engine .*? with config: (.*)")


async def effective_configuration(
    url: str, engine: Engine, log: str = "", headers: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Fields by dotted name, values as text. From the server's own route, else from what `log` says of it (vLLM); None where
    neither tells. `headers`: such as an API key."""
    found: dict[str, str] = {}
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            for route in ROUTES[engine]:
                async with session.get(f"{url}{route}") as response:
                    if response.status == 200 and (tree := _tree(await response.read(), engine)) is not None:
                        found = {**found, **flatten(tree)}
                        if engine != "netgain":  # whose routes tell of different things
                            break
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass
    return found or (from_log(log) if engine == "vllm" else None)


def from_log(log: str) -> dict[str, str] | None:
    """What vLLM's log says: `non-default args: {...}` of the front end, `with config: name=value, ...` of the engine."""
    found: dict[str, str] = {}
    for match in _LOGGED.finditer(log):
        text = match[1] or match[2]
        pairs = re.findall(r"'(\w+)': ('[^']*'|\{[^}]*\}|[^,}]+)", text) if match[1] else _ASSIGNMENT.findall(text)
        found.update({name: value.strip("'\" ") for name, value in pairs if not is_secret(name)})
    return found or None


def flatten(tree: Any, name: str = "") -> dict[str, str]:
    """Nested names joined by dots; lists as text. Secrets (SGLang tells its API key) are left out."""
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            if is_secret(str(key)):
                continue
            found.update(flatten(value, f"{name}.{key}" if name else str(key)))
            if len(found) > _MOST_FIELDS:
                break
        return found
    return {name: tree if isinstance(tree, str) else msgspec.json.encode(tree).decode()}


def _tree(body: bytes, engine: Engine) -> dict[str, Any] | None:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    if engine == "netgain":
        if "data" not in told:
            return told
        cards = told["data"] or [{}]
        own = cards[0].get("netgain") if isinstance(cards[0], dict) else None
        return own if isinstance(own, dict) else None
    if engine == "vllm":
        config = told.get("vllm_config")
        if isinstance(config, str):
            return {name: value for name, value in _ASSIGNMENT.findall(config) if not is_secret(name)}
        return {**config, "environment": told.get("vllm_env", {})} if isinstance(config, dict) else None
    return told

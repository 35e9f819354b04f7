"""What a server says of itself: engine, version, weights, limits, when its process began. Asked before and after the load."""

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import msgspec

from netgain.measuring.client.endpoint import ModelCard
from netgain.measuring.measurement.result import Server
from netgain.measuring.observe.exposition import Snapshot, read_exposition, start_time_s
from netgain.measuring.observe.names import Engine, engine_of
from netgain.secrecy import is_secret

_ASK_S = 5.0
_SAME_START_S = 1.5  # clocks that are set while a server runs move its start by less
_LARGEST = 2**63 - 1
_LARGEST_BYTES = 64 * 2**20
_LONGEST = 500  # characters of one setting that are kept
# where engines other than netgain tell their settings: SGLang (two names), llama.cpp; vLLM has them in its metrics
_PATHS = ("/version", "/get_server_info", "/server_info", "/props")
_OWNERS: Mapping[str, Engine] = {  # what servers write as the owner of their models
    "netgain": "netgain",
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
}
_INFO_METRICS = ("vllm:cache_config_info",)
# what engines call the same thing, most certain first; vLLM and SGLang do not tell all of it
_NAMES: Mapping[str, tuple[str, ...]] = {
    "version": ("version", "build_info"),
    "source": ("source", "root", "model_path"),
    "weights": ("weights",),
    "dtype": ("dtype", "ftype", "model_ftype"),
    "kv_dtype": ("kv_dtype", "cache_dtype", "kv_cache_dtype"),
    "device": ("device",),
    "max_model_len": ("max_model_len", "default_generation_settings.n_ctx", "context_length"),
    "max_running": ("max_running", "max_running_requests", "total_slots"),
    "kv_tokens": ("kv_tokens", "kv_cache_size_tokens", "max_total_num_tokens"),
}
_COUNTS = ("max_model_len", "max_running", "kv_tokens")

Said = dict[str, str | int | float | bool | None]


async def identify(
    session: aiohttp.ClientSession, base: str, metrics_url: str | None, card: ModelCard, model: str
) -> Server:
    """Never raises for what the server does: what it does not say is None."""
    metrics = read_exposition("" if metrics_url is None else await _text(session, metrics_url), 0.0)
    engine = engine_of(set(metrics.families)) or _OWNERS.get(card.owned_by or "")
    said = _of_card(card) | _of_metrics(metrics)
    if engine != "netgain":
        for path in _PATHS:
            said |= dict(_flat(_object(await _text(session, f"{base}{path}"))))
    known = {name: _first(said, names, name in _COUNTS) for name, names in _NAMES.items()}
    if engine == "llama.cpp" and known["kv_tokens"] is None:
        known["kv_tokens"] = _slots_times_context(known)
    return Server(
        url=base,
        model=model,
        engine=engine,
        started_unix_s=start_time_s(metrics),
        said=said,
        **known,  # type: ignore[arg-type]
    )


def changes(before: Server, after: Server) -> tuple[str, ...] | None:
    """How `after` is not the process that `before` was, in words. None: neither says anything that would tell."""
    found: list[str] = []
    tells = False
    if before.started_unix_s is not None and after.started_unix_s is not None:
        tells = True
        if after.started_unix_s - before.started_unix_s > _SAME_START_S:
            found.append(f"its process started anew at {after.started_unix_s:.0f} (Unix time)")
    engines = "engine_restarts"
    if before.said.get(engines) is not None and after.said.get(engines) is not None:
        tells = True
        if before.said[engines] != after.said[engines]:
            found.append(f"its engine was restarted ({before.said[engines]} times before, {after.said[engines]} after)")
    for name in ("engine", "version", "model", *(name for name in _NAMES if name != "version")):
        earlier, later = getattr(before, name), getattr(after, name)
        if earlier is not None and later is not None and earlier != later:
            found.append(f"its {name} changed from {earlier} to {later}")
    return tuple(found) if tells or found else None


def _of_card(card: ModelCard) -> Said:
    said: Said = {"max_model_len": card.max_model_len, "root": card.root}
    said.update(_flat(card.netgain))
    said.update(_flat(card.meta))
    return {name: value for name, value in said.items() if value is not None}


def _of_metrics(metrics: Snapshot) -> Said:
    """Labels of information metrics, and netgain's count of engine restarts."""
    said: Said = {}
    for family in metrics.families.values():
        for sample in family.samples:
            if sample.name.endswith("build_info") or sample.name in _INFO_METRICS:
                said.update({name: value for name, value in sample.labels if value != "None"})
            elif sample.name == "netgain_engine_restarts_total" and math.isfinite(sample.value):
                said["engine_restarts"] = int(said.get("engine_restarts") or 0) + int(sample.value)
    return said


def _flat(found: Mapping[str, Any] | None, above: str = "") -> Iterator[tuple[str, str | int | float | bool | None]]:
    """Plain values, those one level down as outer.inner; long texts (templates) and secrets (SGLang tells its API key) are
    left out."""
    for name, value in (found or {}).items():
        if is_secret(str(name)):
            continue
        if isinstance(value, Mapping) and not above:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
            continue  # no reader of JSON takes it
        elif isinstance(value, str | int | float | bool) and len(str(value)) <= _LONGEST:
            yield f"{above}{name}", value


def _first(said: Said, names: tuple[str, ...], counts: bool) -> str | int | None:
    for name in names:
        value = said.get(name)
        if value in (None, ""):
            continue
        if not counts:
            return str(value)
        try:
            number = int(float(str(value)))
        except (ValueError, OverflowError):
            continue
        if 0 <= number <= _LARGEST:
            return number
    return None


def _slots_times_context(known: Mapping[str, str | int | None]) -> int | None:
    """llama.cpp gives every slot a context of its own."""
    slots, context = known["max_running"], known["max_model_len"]
    return slots * context if isinstance(slots, int) and isinstance(context, int) else None


def _object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) and "error" not in found else {}


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with asyncio.timeout(_ASK_S), session.get(url) as response:
            if response.status != 200:
                return ""
            parts, size = list[bytes](), 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > _LARGEST_BYTES:
                    return ""
                parts.append(part)
            return b"".join(parts).decode("utf-8", "replace")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""

"""Every setting that a server tells of itself, for the report: those of its routes and metrics, and its configuration as it is in
effect."""

import hashlib
from collections.abc import Mapping

import msgspec

from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.errors import NetgainError
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.result import Server
from netgain.measuring.measurement.server import greet
from netgain.measuring.observe.names import Engine
from netgain.secrecy import without_secrets

LONGEST = 400  # characters of a value that are kept; templates and lists of captured graphs are longer
_TOLD_TWICE = ("vllm_env.", "vllm_config")  # by vLLM's /server_info, which the configuration is from


class ArmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: by name, values as text. None: the server tells none. `version` None: it does not tell."""

    name: str
    engine: str | None = None
    version: str | None = None
    settings: dict[str, str] | None = None


async def told_by(
    name: str, url: str, engine: Engine | None, log: str = "", headers: Mapping[str, str] | None = None
) -> ArmSettings:
    """Asks a running server. Never raises for what it does. `log`: what vLLM's tells where its routes are closed."""
    try:
        server = (await greet(Ask(url=url, headers=dict(headers or {})))).server
    except NetgainError:
        server = Server(url=url, model=None, engine=engine)
    configuration = None if engine is None else await effective_configuration(url, engine, log, headers)
    return ArmSettings(
        name=name,
        engine=server.engine or engine,
        version=server.version,
        settings=all_settings(server, configuration) or None,
    )


def all_settings(server: Server, configuration: Mapping[str, str] | None) -> dict[str, str]:
    """What both tell, the configuration where both know a name. Long values are cut, with a digest that keeps them apart."""
    said = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in server.said.items()
        if value is not None and (configuration is None or not name.startswith(_TOLD_TWICE))
    }
    return {name: _kept(value) for name, value in {**said, **(configuration or {})}.items()}


def _kept(value: str) -> str:
    shown = without_secrets(value)
    if len(shown) <= LONGEST:
        return shown
    digest = hashlib.sha256(shown.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{shown[: LONGEST // 2]}… ({len(shown):,} characters, SHA-256 {digest})"

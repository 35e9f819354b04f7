"""The whole effective configuration as a running server tells it to its operator: what `netgain serve --print-config` prints,
with passwords hidden."""

from typing import Any

from netgain.secrecy import HIDDEN, is_secret, without_secrets
from netgain.serving.runtime.config import ServerConfig
from netgain.serving.runtime.tier_specs import shown


def settings_told(config: ServerConfig) -> dict[str, Any]:
    """As a tree of plain values."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    tiers = tree["engine"]["kv"]["tiers"]
    tree["engine"]["kv"]["tiers"] = [shown(tier) if isinstance(tier, str) else tier for tier in tiers]
    hidden: dict[str, Any] = _hidden(tree)
    return hidden


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: HIDDEN if is_secret(name) and isinstance(inner, str) else _hidden(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    return without_secrets(value) if isinstance(value, str) else value

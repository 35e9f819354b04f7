"""Where a model keeps its chat template: beside its weights in a folder, or inside a GGUF; one, or several with names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from netgain.errors import UsageError
from netgain.serving.model.fields import read_json

DEFAULT = "default"
_GGUF_KEY = "tokenizer.chat_template"


def sources_in_folder(folder: Path, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """Templates by name: chat_template.jinja with additional_chat_templates/*.jinja, else those in tokenizer_config.json
    (`settings`: one text, or several with names), else chat_template.json. Empty when there is none."""
    if (folder / "chat_template.jinja").is_file():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        return MappingProxyType(
            {DEFAULT: _read(folder / "chat_template.jinja"), **{path.stem: _read(path) for path in more}}
        )
    found = _named(settings.get("chat_template"))
    if not found and (folder / "chat_template.json").is_file():
        found = _named(read_json(folder / "chat_template.json").get("chat_template"))
    return MappingProxyType(found)


def sources_in_gguf(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """Templates by name: tokenizer.chat_template and tokenizer.chat_template.NAME. Empty when there is none."""
    named = {
        key.removeprefix(_GGUF_KEY).removeprefix(".") or DEFAULT: value
        for key, value in metadata.items()
        if (key == _GGUF_KEY or key.startswith(f"{_GGUF_KEY}.")) and isinstance(value, str)
    }
    return MappingProxyType(named)


def _named(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = value if isinstance(value, list) else []
    pairs = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, dict)]
    return {name: source for name, source in pairs if isinstance(name, str) and isinstance(source, str)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid UTF-8; fetch it again") from error

"""Writes docs/settings.md from the configuration tree itself, so that the page cannot disagree with the server.

Run as `.venv/bin/python tools/document_settings.py`; a test fails while the page is not what this writes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from netgain.serving.runtime.config import ServerConfig

PAGE = Path(__file__).resolve().parents[1] / "docs/settings.md"
HEAD = """# Settings of `netgain serve`

Give them in a YAML file (`--config FILE`), one at a time (`--set NAME=VALUE`, which may be repeated and wins over the file),
or by the options that `netgain serve --help` lists. An unknown name is refused together with the nearest valid one.
`netgain serve --print-config` prints the whole effective configuration. `tools/document_settings.py` writes this page.

| setting | default | meaning |
|---|---|---|
"""


def page() -> str:
    """The whole document."""
    return HEAD + "".join(
        f"| `{name}` | `{default}` | {meaning} |\n" for name, default, meaning in _rows(ServerConfig, "")
    )


def _rows(kind: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _rows(annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, msgspec.json.encode(field.default).decode().strip('"'), _meaning(field)


def _meaning(field: FieldInfo) -> str:
    parts = [field.description or "", _choices(field.annotation)]
    return "; ".join(part for part in parts if part)


def _choices(annotation: Any) -> str:
    if get_origin(annotation) is not Literal:
        return ""
    return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""A model's templates are found wherever models keep them, with all their names."""

import json
from pathlib import Path
from typing import Any

import pytest

from netgain.errors import UsageError
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.templating.files import sources_in_folder, sources_in_gguf

NAMED = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": 5}, "x"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("one", {"default": "one"}), (NAMED, {"default": "d", "tool_use": "t"}), (None, {}), (7, {}), ({}, {})],
)
def test_tokenizer_config_holds_one_or_several(tmp_path: Path, value: Any, expected: dict[str, str]) -> None:
    assert sources_in_folder(tmp_path, {"chat_template": value}) == expected


def test_files_come_before_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert sources_in_folder(tmp_path, {}) == {"default": "json"}
    assert sources_in_folder(tmp_path, {"chat_template": "settings"}) == {"default": "settings"}
    (tmp_path / "chat_template.jinja").write_text("file")
    assert sources_in_folder(tmp_path, {"chat_template": "settings"}) == {"default": "file"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/rag.jinja").write_text("r")
    assert sources_in_folder(tmp_path, {}) == {"default": "file", "rag": "r"}


def test_a_gguf_names_its_templates() -> None:
    metadata = {
        "tokenizer.chat_template": "d",
        "tokenizer.chat_template.tool_use": "t",
        "tokenizer.chat_templates": ["tool_use"],
    }
    assert sources_in_gguf(metadata) == {"default": "d", "tool_use": "t"}
    assert sources_in_gguf({"tokenizer.chat_template": 5}) == {}


def test_templates_without_a_default_are_refused() -> None:
    with pytest.raises(UsageError, match=r"tool_use.*none named 'default'"):
        ChatTemplate({"tool_use": "t"})


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"chat_template\.jinja"):
        sources_in_folder(tmp_path, {})

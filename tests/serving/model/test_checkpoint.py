"""What a user may call a model, and what they hear when it is none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint


def test_a_folder_and_a_file_describe_themselves(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    model = tiny()
    for path in (model.folder, write_gguf(model.reference)):
        checkpoint = open_checkpoint(str(path))
        assert checkpoint.name == path.stem
        assert checkpoint.eos == (257,)
        assert checkpoint.template is not None


def test_the_tokenizers_end_token_ends_a_text_too(tiny: Callable[..., Any]) -> None:
    folder = tiny(eos_token_id=3).folder
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert open_checkpoint(folder).eos == (3, 257)


@pytest.mark.parametrize(
    "source",
    ["nowhere", "/no/such/model.gguf", "a/b.gguf", "", "org/name/more", "x" * 300, "~no-such-user/model", "a\0b"],
)
def test_a_name_that_is_no_model_says_what_may_be_given(source: str) -> None:
    with pytest.raises(UsageError, match=r"give 'default', a \.gguf file, a folder"):
        open_checkpoint(source if source else "nothing-here")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        open_checkpoint(tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(tiny: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="258 tokens, the model only 257"):
        open_checkpoint(tiny(vocab_size=257, eos_token_id=1).folder)


def test_an_end_token_outside_the_vocabulary_is_refused(tiny: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="end token 999 is outside"):
        open_checkpoint(tiny(eos_token_id=999).folder)


def test_a_template_that_is_no_text_is_named(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"chat_template\.jinja is not valid UTF-8"):
        open_checkpoint(folder)


def test_a_broken_template_names_the_model(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    (folder / "chat_template.jinja").write_text("{% nonsense %}")
    with pytest.raises(UsageError, match=rf"{folder.name}.*not valid Jinja"):
        open_checkpoint(folder)

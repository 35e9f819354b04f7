"""What the files beside a tokenizer say of it counts as it does in transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.vocabulary.folder import tokenizer_from_folder


def settings(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **values}))


@pytest.mark.parametrize("add", [True, False, None])
def test_whether_a_start_token_is_put_before_text_is_said_by_tokenizer_json_alone(
    tiny: Callable[..., Any], add: bool | None
) -> None:
    folder = tiny().folder
    settings(folder, bos_token="<|im_start|>", eos_token="<|im_end|>", add_bos_token=add)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert tokenizer_from_folder(folder).encode("ab", start=True) == theirs.encode("ab")


def test_special_tokens_may_be_named_in_a_file_of_their_own(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    settings(folder, chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"})
    )
    checkpoint = open_checkpoint(folder)
    assert checkpoint.template is not None
    ids = checkpoint.template.encode(checkpoint.tokenizer, [{"role": "user", "content": "a"}])
    assert (ids[0], ids[-1], len(ids)) == (256, 257, 3)


def test_settings_win_over_that_file(tiny: Callable[..., Any]) -> None:
    folder = tiny().folder
    settings(folder, bos_token=None, chat_template="{{ bos_token }}{{ messages[0].content }}")
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<|im_start|>"}))
    template = open_checkpoint(folder).template
    assert template is not None
    assert template.render([{"role": "user", "content": "a"}]) == "a"

"""The tokenizer of a Hugging Face folder: tokenizer.json, else SentencePiece's tokenizer.model; with the tokens that
tokenizer_config.json or added_tokens.json put on top."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netgain.errors import UsageError
from netgain.serving.model.fields import read_json
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.model_file import read_model_file
from netgain.serving.model.vocabulary.sentencepiece import added_token, spec_of

_OTHERS = ("tekken.json", "vocab.json", "vocab.txt", "spiece.model", "spm.model", "qwen.tiktoken")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Raises UsageError when there is no tokenizer, or one that is broken or not supported."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        spec = read_json(path)
    elif (folder / "tokenizer.model").is_file():
        path = folder / "tokenizer.model"
        pieces = read_model_file(
            path,
            add_start=settings.get("add_bos_token", True) is not False,
            every_text=settings.get("legacy", True) is not False,
        )
        spec = spec_of(pieces, str(path))
    else:
        other = next((name for name in _OTHERS if (folder / name).is_file()), None)
        found = "" if other is None else f" (it has {other}, which is not supported)"
        raise UsageError(
            f"{folder} holds no tokenizer.json or tokenizer.model{found}; "
            "save the tokenizer with transformers' save_pretrained"
        )
    return Tokenizer(_with_added(folder, spec, settings), str(path))


def special_token(folder: Path, settings: Mapping[str, Any], name: str) -> str | None:
    """The spelling of `bos_token` or `eos_token`, from tokenizer_config.json (`settings`) or special_tokens_map.json."""
    file = folder / "special_tokens_map.json"
    if name not in settings and file.is_file():
        settings = read_json(file)
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def tokenizer_from_file(path: Path) -> Tokenizer:
    """From a tokenizer.json; raises UsageError when it is missing or broken."""
    return Tokenizer(read_json(path), str(path))


def _with_added(folder: Path, spec: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the tokens that only the files beside it name, by ascending id, as transformers adds them."""
    added = spec.get("added_tokens")
    known = {token.get("content") for token in added if isinstance(token, dict)} if isinstance(added, list) else set()
    more: dict[int, dict[str, Any]] = {}
    file = folder / "added_tokens.json"
    for content, number in (read_json(file) if file.is_file() else {}).items():
        if isinstance(number, int) and content not in known:
            more[number] = added_token(number, content, special=False)
    decoder = settings.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content and key.isdecimal() and content not in known:
            stripped = (token.get("lstrip") is True, token.get("rstrip") is True)
            more[int(key)] = added_token(int(key), content, token.get("special") is True, *stripped)
    if not more:
        return spec
    return {**spec, "added_tokens": [*(added or []), *(more[number] for number in sorted(more))]}

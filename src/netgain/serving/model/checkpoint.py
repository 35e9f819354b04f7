"""A model before its weights are loaded: what it is called, its shape, its tokenizer and template. Needs no torch, so the
process that speaks HTTP can have it too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from netgain.errors import NetgainError, UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.fetch import MODEL_FILE, Report, default_model_path, fetch_default_model
from netgain.serving.model.fields import read_json
from netgain.serving.model.gguf import GgufFile
from netgain.serving.model.gguf_config import config_from_gguf
from netgain.serving.model.hub import fetch_from_hub
from netgain.serving.model.huggingface_config import config_from_huggingface
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.templating.files import sources_in_folder, sources_in_gguf
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.folder import special_token, tokenizer_from_folder
from netgain.serving.model.vocabulary.gguf import tokenizer_from_gguf

DEFAULT = "default"
DEFAULT_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Checkpoint:
    """`gguf` is the open file, or None for a Hugging Face folder. `template` is None for models without a chat form.

    `name` is what the model is called without being told; `eos` ends a text.
    """

    name: str
    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos: tuple[int, ...]
    gguf: GgufFile | None


def open_checkpoint(source: str | Path, report: Report | None = None) -> Checkpoint:
    """From "default", a GGUF file, a Hugging Face folder, or a Hugging Face id (needs huggingface_hub).

    Fetches what is not on this machine yet. Raises UsageError for what is no model this engine can run, Unavailable
    when a registry cannot be reached.
    """
    path, name = _locate(source, report)
    checkpoint = _open_folder(path, name) if path.is_dir() else _open_gguf(path)
    if checkpoint.tokenizer.vocab_size > checkpoint.config.vocab:
        raise UsageError(
            f"{path}: the tokenizer has {checkpoint.tokenizer.vocab_size} tokens, the model only {checkpoint.config.vocab}"
        )
    outside = [token for token in checkpoint.eos if token >= checkpoint.config.vocab]
    if outside:
        raise UsageError(f"{path}: end token {outside[0]} is outside the vocabulary of {checkpoint.config.vocab}")
    return checkpoint


def _locate(source: str | Path, report: Report | None) -> tuple[Path, str | None]:
    """Where the model lies, and the id it was asked for by, if that is how."""
    if source == DEFAULT:
        return fetch_default_model(report=report), None
    reason = ""
    try:
        path = Path(source).expanduser()
        if path.is_dir() or path.is_file():
            return path, None
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, no such user, a folder that may not be read
        reason = f" ({getattr(error, 'strerror', None) or error})"
    else:
        if isinstance(source, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", source) and path.suffix != ".gguf":
            return fetch_from_hub(source), source
    raise UsageError(
        f"no model at {str(source)!r}{reason}: give 'default', a .gguf file, a folder with config.json and safetensors, "
        "or an id like org/name"
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    config = config_from_gguf(file)
    tokenizer = tokenizer_from_gguf(path, file.metadata)
    sources = sources_in_gguf(file.metadata)
    template = None
    if sources:
        bos = tokenizer.spelling(config.bos) if config.bos is not None else None
        eos = tokenizer.spelling(config.eos[0]) if config.eos else None
        template = _template(path, sources, bos, eos)
    name = DEFAULT_NAME if path == default_model_path() or path.name == MODEL_FILE else path.stem
    return Checkpoint(name, path, config, tokenizer, template, config.eos, file)


def _open_folder(folder: Path, name: str | None) -> Checkpoint:
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} holds no config.json, so it is no Hugging Face model folder")
    config = config_from_huggingface(folder)
    tokenizer = tokenizer_from_folder(folder)
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    eos_token, bos_token = (special_token(folder, settings, name) for name in ("eos_token", "bos_token"))
    sources = sources_in_folder(folder, settings)
    eos = config.eos
    if eos_token is not None and (token := tokenizer.id_of(eos_token)) is not None:
        eos = tuple(dict.fromkeys((*eos, token)))
    template = _template(folder, sources, bos_token, eos_token) if sources else None
    return Checkpoint(name or folder.resolve().name, folder, config, tokenizer, template, eos, None)


def _template(where: Path, sources: Mapping[str, str], bos: str | None, eos: str | None) -> ChatTemplate:
    try:
        return ChatTemplate(sources, bos or "", eos or "")
    except NetgainError as error:
        raise UsageError(f"{where}: {error}") from error

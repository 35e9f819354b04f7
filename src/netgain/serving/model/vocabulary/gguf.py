"""The vocabulary inside a GGUF file, in tokenizer.json's terms: byte-level BPE (gpt2) and SentencePiece BPE (llama)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from netgain.errors import UsageError
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.pre_tokenizers import DEFAULT, PRE_TOKENIZERS
from netgain.serving.model.vocabulary.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Pieces,
    added_token,
    spec_of,
    starting_with,
)


def tokenizer_from_gguf(where: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """From a GGUF's own vocabulary; raises UsageError naming a kind or pre-tokenizer that is not supported."""
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            return Tokenizer(_byte_level(where, metadata), str(where))
        case "llama":
            return Tokenizer(_sentencepiece(where, metadata), str(where))
        case kind:
            raise UsageError(
                f"{where}: GGUF tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece)"
            )


def _byte_level(where: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    name = metadata.get("tokenizer.ggml.pre", DEFAULT)
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        supported = ", ".join(PRE_TOKENIZERS)
        raise UsageError(f"{where}: GGUF pre-tokenizer {name!r} is not supported; supported: {supported}")
    pre = PRE_TOKENIZERS[name]
    tokens = _texts(where, metadata, "tokens")
    pairs = [merge.split(" ") for merge in _texts(where, metadata, "merges")]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"{where}: a merge rule is not a pair of tokens; the file is damaged")
    start = _start(where, metadata, tokens, pre.start)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(number, token, special=kind == CONTROL)
            for number, (token, kind) in enumerate(zip(tokens, _kinds(where, metadata, tokens), strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": pre.spec,
        "post_processor": None if start is None else starting_with(tokens[start], start),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole_words,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": pairs,
        },
    }


def _sentencepiece(where: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = _texts(where, metadata, "tokens")
    kinds = _kinds(where, metadata, tokens)
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or not all(isinstance(score, int | float) for score in scores):
        raise UsageError(f"{where}: the GGUF holds no tokenizer.ggml.scores, which say what its tokens are made of")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    if unknown is None:
        unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else None
    if unknown is not None and (not isinstance(unknown, int) or not 0 <= unknown < len(tokens)):
        raise UsageError(f"{where}: unknown token {unknown!r} is not in the vocabulary of {len(tokens)}")
    pieces = Pieces(
        texts=tokens,
        scores=scores,
        kinds=kinds,
        unigram=False,
        unknown=unknown,
        start=_start(where, metadata, tokens, True),
        leading_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        byte_fallback=BYTE in kinds,
    )
    return spec_of(pieces, str(where))


def _kinds(where: Path, metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(kinds, list):
        raise UsageError(f"{where}: tokenizer.ggml.token_type is {kinds!r}, expected a list; the file is damaged")
    if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise UsageError(
            f"{where}: {len(kinds)} token types for {len(set(tokens))} distinct tokens; the file is damaged"
        )
    return kinds


def _start(where: Path, metadata: Mapping[str, Any], tokens: Sequence[str], default: bool) -> int | None:
    """The id that is put before a text. A family's default holds only where the file names such a token."""
    asked = metadata.get("tokenizer.ggml.add_bos_token")
    start = metadata.get("tokenizer.ggml.bos_token_id")
    if not (default if asked is None else asked) or (asked is None and start is None):
        return None
    if not isinstance(start, int) or not 0 <= start < len(tokens):
        raise UsageError(f"{where}: start token {start!r} is not in the vocabulary of {len(tokens)}")
    return start


def _texts(where: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{where}: the GGUF holds no tokenizer.ggml.{key}")
    return values

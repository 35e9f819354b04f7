"""SentencePiece vocabularies (BPE and unigram) in tokenizer.json's terms: pieces with scores become merges in their order."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from netgain.errors import UsageError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"

MAX_PIECE_CHARACTERS = 4096


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model. Lists are as long as the vocabulary, by id.

    `every_text`: the space before a text is also put before what follows a control token. `start`: the id put before a
    text. `apart`: user-defined pieces are cut out of text as added tokens are, instead of inside SentencePiece.
    """

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unigram: bool
    unknown: int | None
    start: int | None
    leading_space: bool = True
    every_text: bool = True
    apart: bool = True
    byte_fallback: bool = True
    extra_spaces: bool = True
    charsmap: bytes = b""


def spec_of(pieces: Pieces, where: str) -> dict[str, Any]:
    """The same as a tokenizer.json. Raises UsageError when the pieces contradict each other."""
    _check(pieces, where)
    kinds = {USER_DEFINED} if pieces.apart else set()
    added = [
        added_token(number, text, special=kind in (UNKNOWN, CONTROL))
        for number, (text, kind) in enumerate(zip(pieces.texts, pieces.kinds, strict=True))
        if kind in (UNKNOWN, CONTROL) or kind in kinds
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(pieces))},
        "pre_tokenizer": _pre_tokenizer(pieces),
        "post_processor": None if pieces.start is None else starting_with(pieces.texts[pieces.start], pieces.start),
        "decoder": {"type": "Sequence", "decoders": list(_decoders(pieces))},
        "model": _unigram(pieces) if pieces.unigram else _bpe(pieces),
    }


def added_token(number: int, content: str, special: bool, lstrip: bool = False, rstrip: bool = False) -> dict[str, Any]:
    """An entry of a tokenizer.json's `added_tokens`."""
    return {
        "id": number,
        "content": content,
        "special": special,
        "single_word": False,
        "lstrip": lstrip,
        "rstrip": rstrip,
        "normalized": False,
    }


def starting_with(token: str, number: int) -> dict[str, Any]:
    """A post-processor that puts one token before a text."""
    start = {"SpecialToken": {"id": token, "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [start, text[0]],
        "pair": [start, *text],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _check(pieces: Pieces, where: str) -> None:
    size = len(pieces.texts)
    if len(pieces.scores) != size or len(pieces.kinds) != size:
        raise UsageError(
            f"{where}: {size} tokens with {len(pieces.scores)} scores and {len(pieces.kinds)} types; the file is damaged"
        )
    if len(set(pieces.texts)) != size:
        raise UsageError(f"{where}: a token appears twice in the vocabulary; the file is damaged")
    for number in (pieces.unknown, pieces.start):
        if number is not None and not 0 <= number < size:
            raise UsageError(f"{where}: special token {number} is not in the vocabulary of {size}")
    longest = max(map(len, pieces.texts), default=0)
    if longest > MAX_PIECE_CHARACTERS:
        raise UsageError(f"{where}: a token has {longest} characters; the file is damaged")
    if not all(math.isfinite(score) for score in pieces.scores):
        raise UsageError(f"{where}: a token's score is not a finite number; the file is damaged")


def _bpe(pieces: Pieces) -> dict[str, Any]:
    unknown = None if pieces.unknown is None else pieces.texts[pieces.unknown]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": pieces.byte_fallback,
        "ignore_merges": bool(_inside(pieces)),
        "vocab": {text: number for number, text in enumerate(pieces.texts)},
        "merges": _merges(pieces),
    }


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joined piece scores highest; so every way to make a piece is a merge, the
    highest score first. Only ordinary pieces are made or joined."""
    ordinary = {text: number for number, text in enumerate(pieces.texts) if pieces.kinds[number] == NORMAL}
    ranked = []
    for text, number in ordinary.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in ordinary and right in ordinary:
                ranked.append((-pieces.scores[number], number, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _unigram(pieces: Pieces) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": pieces.unknown,
        "vocab": [[text, score] for text, score in zip(pieces.texts, pieces.scores, strict=True)],
        "byte_fallback": pieces.byte_fallback,
    }


def _normalizers(pieces: Pieces) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if pieces.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(pieces.charsmap).decode()})
    if not pieces.extra_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if pieces.leading_space and pieces.every_text:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return steps


def _pre_tokenizer(pieces: Pieces) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if pieces.leading_space and not pieces.every_text:
        steps.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False})
    if inside := _inside(pieces):
        pattern = "|".join(re.escape(text) for text in sorted(inside, key=len, reverse=True))
        steps.append({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})
    return {"type": "Sequence", "pretokenizers": steps} if steps else None


def _inside(pieces: Pieces) -> list[str]:
    """User-defined pieces that stay whole within a text."""
    if pieces.apart:
        return []
    return [text for text, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == USER_DEFINED and text]


def _decoders(pieces: Pieces) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if pieces.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if pieces.leading_space:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps

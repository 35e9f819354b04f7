"""SentencePiece's own file, tokenizer.model: the few fields of its protobuf that decide how text becomes ids.

Field numbers are those of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from netgain.errors import UsageError
from netgain.serving.model.vocabulary.sentencepiece import BYTE, CONTROL, NORMAL, Pieces

_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}


def read_model_file(path: Path, *, add_start: bool, every_text: bool) -> Pieces:
    """Raises UsageError when the file is damaged or of a kind that is not supported."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return _pieces(path, data, add_start, every_text)
    except (ValueError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise UsageError(f"{path} is no SentencePiece model or is damaged ({error}); fetch it again") from error


def _pieces(path: Path, data: bytes, add_start: bool, every_text: bool) -> Pieces:
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: Mapping[int, Any] = {}
    normalizer: Mapping[int, Any] = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(value))
            texts.append(piece.get(1, b"").decode())
            scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            kinds.append(piece.get(3, NORMAL))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            normalizer = dict(_fields(value))
    if not texts:
        raise ValueError("it holds no pieces")
    kind = trainer.get(3, 1)
    if kind not in (1, 2):
        raise UsageError(
            f"{path}: SentencePiece models of kind {_KINDS.get(kind, kind)} are not supported; supported: BPE, unigram"
        )
    if trainer.get(24, 0):
        raise UsageError(f"{path}: SentencePiece with white space as a suffix is not supported")
    if not normalizer.get(5, 1):
        raise UsageError(f"{path}: SentencePiece without escaped white space is not supported")
    start = trainer.get(41, 1)
    return Pieces(
        texts=texts,
        scores=scores,
        kinds=kinds,
        unigram=kind == 1,
        unknown=trainer.get(40, 0),
        start=start if add_start and start < len(kinds) and kinds[start] == CONTROL else None,
        leading_space=bool(normalizer.get(3, 1)),
        every_text=every_text,
        apart=False,
        byte_fallback=BYTE in kinds,
        extra_spaces=not normalizer.get(4, 1),
        charsmap=normalizer.get(2, b""),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers with their values: numbers as int, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        match key & 7:
            case 0:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"wire type {other} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"{size} bytes are announced at byte {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number is cut short at byte {at}")

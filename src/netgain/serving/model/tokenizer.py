"""Text to token ids and back, where only a template's own markers become control tokens and no character is ever cut.

One class over the `tokenizers` library, built from a tokenizer.json or from GGUF metadata; both give the same object.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Encoder

from netgain.errors import UsageError

# Characters that may stand before a marker in text that is not the template's (see `guard_for`): noncharacters first.
_GUARDS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}

# llama.cpp's names (tokenizer.ggml.pre) for how text is cut before merging -> the same in tokenizer.json's terms.
_PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
        "gpt-2": _BYTE_LEVEL,
    }
)
_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


@dataclass(frozen=True)
class _Marker:
    """A control token; with lstrip or rstrip it takes the white space on that side along."""

    id: int
    lstrip: bool
    rstrip: bool


class Tokenizer:
    """A vocabulary with its merges and special tokens; `spec` is the content of a tokenizer.json.

    `digest` identifies how text becomes ids (32 hex digits).
    """

    def __init__(self, spec: Mapping[str, Any], where: str) -> None:
        text = json.dumps(spec, ensure_ascii=False, sort_keys=True)
        try:
            self._full = Encoder.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise UsageError(f"{where}: the tokenizer cannot be built: {error}") from error
        self._full.no_truncation()
        self._full.no_padding()
        self.spec = spec
        canonical = self._full.to_str()
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()[:32]
        parsed = json.loads(canonical)
        added = self._full.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._control = frozenset(number for number, token in added.items() if token.special)
        self._markers = {
            token.content: _Marker(number, token.lstrip, token.rstrip)
            for number, token in added.items()
            if _is_marker(token.content, token.special)
        }
        self._spellings = "|".join(re.escape(spelling) for spelling in sorted(self._markers, key=len, reverse=True))
        self._starts = frozenset(spelling[0] for spelling in self._markers)
        self._tails = frozenset(spelling[at:] for spelling in self._markers for at in range(1, len(spelling)))
        self._plain = _without(parsed, set(self._markers))
        self._decoding = _decoding(parsed.get("decoder") or {}, where)
        self._bytes: dict[int, bytes] = {}
        self._prefix = self._sequence_prefix()

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._full.get_vocab_size(with_added_tokens=True)

    @property
    def markers(self) -> Mapping[str, int]:
        """Control tokens and other bracketed marks, by their spelling."""
        return MappingProxyType({spelling: token.id for spelling, token in self._markers.items()})

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out."""
        return self._control

    def id_of(self, token: str) -> int | None:
        """The id of a token by its stored spelling; None when there is none."""
        return self._full.token_to_id(token)

    def spelling(self, token: int) -> str | None:
        """How the vocabulary spells a token; None when there is none."""
        return self._full.id_to_token(token)

    def encode(self, text: str, start: bool = False) -> list[int]:
        """Ids of plain text: what spells a marker stays ordinary tokens. `start` puts the model's own start tokens before."""
        ids = self._plain.encode(_whole(text), add_special_tokens=False).ids
        return [*self._prefix, *ids] if start else ids

    def encode_marked(self, text: str, guard: str) -> list[int]:
        """Ids of rendered template text: a marker becomes its control id unless `guard` stands before it; guards vanish."""
        if not self._markers:
            return self.encode(text.replace(guard, ""))
        ids: list[int] = []
        at = 0
        for match in re.finditer(f"(?<!{re.escape(guard)})(?:{self._spellings})", text):
            token = self._markers[match.group()]
            piece = text[at : match.start()].replace(guard, "")
            ids += self.encode(piece.rstrip() if token.lstrip else piece)
            ids.append(token.id)
            at = match.end()
            if token.rstrip:
                at += len(text[at:]) - len(text[at:].lstrip())
        return ids + self.encode(text[at:].replace(guard, ""))

    def guarded(self, text: str, guard: str) -> str:
        """`text` with the guard wherever it could spell a marker, alone or with what a template puts around it."""
        text = self.guarded_name(text, guard)
        body = text.lstrip()
        if body and any(body.startswith(tail) or tail.startswith(body) for tail in self._tails):
            text = text[: len(text) - len(body)] + guard + body
        return text

    def guarded_name(self, text: str, guard: str) -> str:
        """`text` with the guard before whatever could begin a marker: for names that a template looks up."""
        if self._starts.isdisjoint(text):
            return text
        return "".join(guard + letter if letter in self._starts else letter for letter in text)

    def decode(self, ids: Iterable[int], keep_control: bool = False) -> str:
        """Text of ids; bytes that are no UTF-8 become replacement marks. Equal to what a Detokenizer gives in pieces."""
        return b"".join(self.token_bytes(token, keep_control) for token in ids).decode("utf-8", "replace")

    def token_bytes(self, token: int, keep_control: bool = False) -> bytes:
        """The bytes that one token adds to the text; empty for control tokens unless kept, and for unknown ids."""
        known = self._bytes.get(token)
        if known is None:
            spelling = self._full.id_to_token(token) or ""
            known = self._bytes[token] = spelling.encode() if token in self._added else self._decoding(spelling)
        return b"" if token in self._control and not keep_control else known

    def _sequence_prefix(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text, seen on a one-letter text."""
        bare = self._full.encode("a", add_special_tokens=False).ids
        dressed = self._full.encode("a", add_special_tokens=True).ids
        for at in range(len(dressed) - len(bare) + 1):
            if dressed[at : at + len(bare)] == bare:
                return tuple(dressed[:at])
        return ()


class Detokenizer:
    """Text of a growing list of tokens: a character is given out once all its bytes are there, or proved impossible.

    `keep` are spellings of control tokens that shall be part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, keep: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._kept = frozenset(tokenizer.markers[spelling] for spelling in keep if spelling in tokenizer.markers)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Iterable[int]) -> str:
        """Text that became certain with these tokens; may be empty."""
        of, kept = self._tokenizer.token_bytes, self._kept
        return self._decoder.decode(b"".join(of(token, token in kept) for token in tokens))

    @property
    def holds(self) -> bool:
        """Whether the tokens so far end inside a character, which is held back."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """What was held back at the end: empty, or one replacement mark for a character cut short."""
        return self._decoder.decode(b"", final=True)


def tokenizer_from_file(path: Path) -> Tokenizer:
    """From a Hugging Face tokenizer.json; raises UsageError when it is missing or broken."""
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(spec, dict):
        raise UsageError(f"{path} holds no tokenizer, expected a JSON object")
    return Tokenizer(spec, str(path))


def tokenizer_from_gguf(where: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """From a GGUF's own vocabulary; raises UsageError naming a kind or pre-tokenizer that is not supported."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise UsageError(f"{where}: GGUF tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE)")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        supported = ", ".join(_PRE_TOKENIZERS)
        raise UsageError(f"{where}: GGUF pre-tokenizer {pre!r} is not supported; supported: {supported}")
    tokens, merges = _texts(where, metadata, "tokens"), _texts(where, metadata, "merges")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(types, list):
        raise UsageError(f"{where}: tokenizer.ggml.token_type is {types!r}, expected a list; the file is damaged")
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise UsageError(f"{where}: {len(types)} token types for {len(tokens)} distinct tokens; the file is damaged")
    added = [
        {
            "id": number,
            "content": token,
            "special": kind == _CONTROL,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    pairs = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"{where}: a merge rule is not a pair of tokens; the file is damaged")
    spec: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _start_token(where, metadata, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": pairs,
        },
    }
    return Tokenizer(spec, str(where))


def guard_for(texts: Iterable[str]) -> str | None:
    """A character that none of the texts holds, to stand before their would-be markers; None if they hold every one."""
    used = set().union(*texts)
    return next((chr(code) for code in _GUARDS if chr(code) not in used), None)


def _start_token(where: Path, metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any] | None:
    if not metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(bos, int) or not 0 <= bos < len(tokens):
        raise UsageError(f"{where}: start token {bos!r} is not in the vocabulary of {len(tokens)}")
    start = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [start, text[0]],
        "pair": [start, *text],
        "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}},
    }


def _texts(where: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{where}: the GGUF holds no tokenizer.ggml.{key}")
    return values


def _is_marker(content: str, special: bool) -> bool:
    """Special tokens, and ordinary added ones that look like markup (such as tool-call tags); not runs of spaces."""
    return special or re.fullmatch(r"<[^\s<>]+>|\[[^\s\[\]]+\]", content) is not None


def _without(spec: Mapping[str, Any], markers: set[str]) -> Encoder:
    """The same tokenizer, unable to produce the given added tokens from text.

    They stay, since the library numbers added tokens by their order, but as special ones, which it is told not to match.
    """
    model = spec["model"]
    hidden = {}
    if model.get("ignore_merges"):  # a whole word found in the vocabulary would skip merging: respell the markers
        hidden = {marker: f"\0{marker}" for marker in markers}
        model = {**model, "vocab": {hidden.get(token, token): number for token, number in model["vocab"].items()}}
    added = [
        {**token, "content": hidden.get(token["content"], token["content"]), "special": True}
        if token["content"] in markers
        else token
        for token in spec["added_tokens"]
    ]
    plain = Encoder.from_str(
        json.dumps({**spec, "model": model, "added_tokens": added, "post_processor": None}, ensure_ascii=False)
    )
    plain.encode_special_tokens = True
    return plain


def _decoding(decoder: Mapping[str, Any], where: str) -> Callable[[str], bytes]:
    """How a token's spelling becomes bytes, by the kind of decoder."""
    kinds = {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", ()))}
    if "ByteLevel" in kinds:
        table = _byte_alphabet()
        return lambda spelling: b"".join(
            bytes([table[letter]]) if letter in table else letter.encode() for letter in spelling
        )
    raise UsageError(f"{where}: decoder {sorted(map(str, kinds))} is not supported; supported: ByteLevel")


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in that byte-level vocabularies use for every byte: itself where printable, else from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [code for code in range(256) if code not in shown]
    return {chr(code): code for code in shown} | {chr(0x100 + at): code for at, code in enumerate(hidden)}


def _whole(text: str) -> str:
    """Lone surrogates, which no encoder takes, become replacement marks."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""Text to token ids and back, where only a template's own markers become control tokens and no character is ever cut.

One class over the `tokenizers` library. The room vocabulary/ says how each file format becomes the spec it is built from.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import Tokenizer as Encoder

from netgain.errors import RequestRejected, UsageError
from netgain.serving.model.vocabulary.decoding import decoding_of

# Characters that may stand before a marker in text that is not the template's (see `guard_for`): noncharacters first.
_GUARDS = [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]


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
        self._full = _build(spec, where)
        self._where = where
        self.spec = spec
        canonical = self._full.to_str()
        self.digest = hashlib.sha256(canonical.encode()).hexdigest()[:32]
        parsed = msgspec.json.decode(canonical)
        added = self._full.get_added_tokens_decoder()
        _check_numbers(spec, self._full, where)
        self._size = _size(parsed["model"]["vocab"], added)
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
        self._decoding = decoding_of(parsed.get("decoder") or {}, where)
        self._bytes: dict[int, bytes] = {}
        self._prefix = self._sequence_prefix()

    def ready(self) -> None:
        """Build what encodes text, else done at the first text: a process that only decodes never needs it. Raises
        UsageError."""
        self._encoders  # noqa: B018

    @functools.cached_property
    def _encoders(self) -> tuple[Encoder, Encoder]:
        """For a text, and for text that does not begin one; neither produces a marker."""
        plain = _without(msgspec.json.decode(self._full.to_str()), set(self._markers))
        begin = _plain(plain, self._where)
        inside = _within(plain.get("pre_tokenizer"))
        return begin, _plain({**plain, "pre_tokenizer": inside}, self._where) if inside else begin

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._size

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
        return self._full.id_to_token(token) if 0 <= token < self._size else None

    def encode(self, text: str, start: bool = False) -> list[int]:
        """Ids of plain text: what spells a marker stays ordinary tokens. `start` puts the model's own start tokens before."""
        ids = _ids(self._encoders[0], text)
        return [*self._prefix, *ids] if start else ids

    def encode_marked(self, text: str, guard: str) -> list[int]:
        """Ids of rendered template text: a marker becomes its control id unless `guard` stands before it; guards vanish."""
        if not self._markers:
            return self.encode(text.replace(guard, ""))
        begin, inside = self._encoders
        ids: list[int] = []
        at = 0
        for match in re.finditer(f"(?<!{re.escape(guard)})(?:{self._spellings})", text):
            token = self._markers[match.group()]
            piece = text[at : match.start()].replace(guard, "")
            ids += _ids(inside if ids else begin, piece.rstrip() if token.lstrip else piece)
            ids.append(token.id)
            at = match.end()
            if token.rstrip:
                at += len(text[at:]) - len(text[at:].lstrip())
        return ids + _ids(inside if ids else begin, text[at:].replace(guard, ""))

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

    def decode(self, ids: Iterable[int], keep_control: bool = False, continues: bool = False) -> str:
        """Text of ids; bytes that are no UTF-8 become replacement marks. Equal to what a Detokenizer gives in pieces."""
        data = b"".join(self.token_bytes(token, keep_control) for token in ids)
        return (data if continues else data.removeprefix(self.leading)).decode("utf-8", "replace")

    @property
    def leading(self) -> bytes:
        """What the tokenizer puts before every text, a space or nothing; taken off once where a text begins."""
        return self._decoding.leading

    def token_bytes(self, token: int, keep_control: bool = False) -> bytes:
        """The bytes that one token adds to the text; empty for control tokens unless kept, and for unknown ids."""
        known = self._bytes.get(token)
        if known is None:
            spelling = self.spelling(token) or ""
            known = self._bytes[token] = spelling.encode() if token in self._added else self._decoding.of(spelling)
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

    `keep` are spellings of control tokens that shall be part of the text. `continues`: the tokens go on with a text, as a
    completion does with its prompt; else they begin one, and a SentencePiece tokenizer's leading space is taken off.
    """

    def __init__(self, tokenizer: Tokenizer, keep: Iterable[str] = (), continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._kept = frozenset(tokenizer.markers[spelling] for spelling in keep if spelling in tokenizer.markers)
        self._leading = b"" if continues else tokenizer.leading
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Iterable[int]) -> str:
        """Text that became certain with these tokens; may be empty."""
        of, kept = self._tokenizer.token_bytes, self._kept
        data = b"".join([of(token, token in kept) for token in tokens])
        if self._leading and data:
            data, self._leading = data.removeprefix(self._leading), b""
        return self._decoder.decode(data)

    @property
    def holds(self) -> int:
        """How many characters the bytes are that are held back, if nothing completes them; 0: none are."""
        held = self._decoder.getstate()[0]
        return len(held.decode("utf-8", "replace")) if held else 0

    def cut_by(self, token: int) -> int:
        """How many replacement marks stand before this token: for a character that is held back and cannot go on with it."""
        held = self._decoder.getstate()[0]
        first = self._tokenizer.token_bytes(token, token in self._kept)[:1] if held else b""
        marks = self.holds if first else 0
        return marks if marks and len((held + first).decode("utf-8", "replace")) > marks else 0

    def finish(self) -> str:
        """What was held back at the end: empty, or one replacement mark for a character cut short."""
        return self._decoder.decode(b"", final=True)


def guard_for(texts: Iterable[str]) -> str | None:
    """A character that none of the texts holds, to stand before their would-be markers; None if they hold every one."""
    used = set().union(*texts)
    return next((chr(code) for code in _GUARDS if chr(code) not in used), None)


def _size(vocab: Mapping[str, int] | Sequence[Any], added: Iterable[int]) -> int:
    """One more than the highest id of a model's vocabulary (ids by token, or a unigram model's list) and added tokens."""
    own = max(vocab.values(), default=-1) if isinstance(vocab, Mapping) else len(vocab) - 1
    return max(own, max(added, default=-1)) + 1


def _is_marker(content: str, special: bool) -> bool:
    """Special tokens, and ordinary added ones that look like markup (such as tool-call tags); not runs of spaces."""
    return special or re.fullmatch(r"<[^\s<>]+>|\[[^\s\[\]]+\]", content) is not None


def _without(spec: dict[str, Any], markers: set[str]) -> dict[str, Any]:
    """The same tokenizer, unable to produce the given added tokens from text.

    They stay, since the library numbers added tokens by their order, but as special ones, which it is told not to match.
    In the vocabulary they are spelled as nobody can guess, and nothing merges into them.
    """
    secret = secrets.token_hex(16)
    hidden = {marker: f"{secret}{marker}" for marker in markers}
    model = dict(spec["model"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {hidden.get(token, token): number for token, number in vocab.items()}
    else:  # of a unigram model, with scores
        model["vocab"] = [[hidden.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if markers.isdisjoint((*pair, "".join(pair)))]
    added = [
        {**token, "content": hidden.get(token["content"], token["content"]), "special": True}
        if token["content"] in markers
        else token
        for token in spec["added_tokens"]
    ]
    return {**spec, "model": model, "added_tokens": added, "post_processor": None}


def _plain(spec: dict[str, Any], where: str) -> Encoder:
    encoder = _build(spec, where)
    encoder.encode_special_tokens = True
    return encoder


def _within(pre_tokenizer: Any) -> dict[str, Any] | None:
    """The same pre-tokenizer for text that does not begin the whole one; None when there is no difference."""
    match pre_tokenizer:
        case {"type": "Metaspace", "prepend_scheme": "first"}:
            return {**pre_tokenizer, "prepend_scheme": "never"}
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            within = [_within(step) for step in steps]
            if any(within):
                return {**pre_tokenizer, "pretokenizers": [new or old for new, old in zip(within, steps, strict=True)]}
    return None


def _build(spec: Mapping[str, Any], where: str) -> Encoder:
    """The library's tokenizer, tried once; whatever it raises or panics at becomes a UsageError."""
    try:
        encoder = Encoder.from_buffer(msgspec.json.encode(dict(spec)))
        encoder.no_truncation()
        encoder.no_padding()
        encoder.encode("a")
    except BaseException as error:
        raise UsageError(f"{where}: the tokenizer cannot be built: {_reason(error)}") from error
    return encoder


def _ids(encoder: Encoder, text: str) -> list[int]:
    try:
        # unlike `encode`, a batch lets other threads run: a long text takes seconds
        ids: list[int] = encoder.encode_batch_fast([_whole(text)], add_special_tokens=False)[0].ids
    except BaseException as error:
        raise RequestRejected(f"the model's tokenizer cannot encode this text: {_reason(error)}") from error
    return ids


def _reason(error: BaseException) -> str:
    """What the library says: it raises plain Exception, and panics come as BaseException. Anything else goes on."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return str(error) or type(error).__name__


def _check_numbers(spec: Mapping[str, Any], encoder: Encoder, where: str) -> None:
    """Each added token must have got the id that the file gives it: the library numbers them by their order."""
    for token in spec.get("added_tokens") or ():
        got = encoder.token_to_id(token["content"])
        if got != token["id"]:
            raise UsageError(
                f"{where}: added token {token['content']!r} has id {token['id']}, which does not follow the vocabulary "
                f"(it would be {got}); the file is damaged"
            )


def _whole(text: str) -> str:
    """Lone surrogates, which no encoder takes, become replacement marks."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

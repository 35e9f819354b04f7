"""Log-probabilities as clients read them: entries of tokens, and their JSON on each endpoint."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from netgain.serving.engine.request import TokenLogprobs
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


class Entry(NamedTuple):
    """One token: its law (None: nothing stands before it), and the place of the character in which it begins."""

    token: int
    law: TokenLogprobs | None
    offset: int


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat's answer; `bytes` is exact where a token holds only part of a character."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: tuple[ChatLogprob, ...]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one place per token; the first token of an echoed prompt has no log-probability."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: tuple[Mapping[str, float] | None, ...]
    text_offset: tuple[int, ...]


class RankedToken(msgspec.Struct, frozen=True):
    """vLLM's form for prompts; `rank` counts from 1 and is None where it is below the tokens asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class Spelling:
    """How tokens are written in these lists: as text; what is no text by itself as `bytes:` and its bytes. With `as_ids`
    as `token_id:` and the id."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token, keep_control=True)

    def text(self, token: int) -> str:
        """Never the same for two different tokens of different bytes."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self.bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(entries: Sequence[Entry], top: int, spelling: Spelling) -> ChatLogprobs:
    return ChatLogprobs(tuple(_chat_entry(entry, top, spelling) for entry in entries if entry.law is not None))


def text_logprobs(entries: Sequence[Entry], top: int, spelling: Spelling) -> TextLogprobs:
    return TextLogprobs(
        tokens=tuple(spelling.text(entry.token) for entry in entries),
        token_logprobs=tuple(None if entry.law is None else finite(entry.law.logprob) for entry in entries),
        top_logprobs=tuple(
            None if entry.law is None else _by_spelling(_most_likely(entry.token, entry.law, top), spelling)
            for entry in entries
        ),
        text_offset=tuple(entry.offset for entry in entries),
    )


def prompt_logprobs(
    prompt: Sequence[int], laws: Sequence[TokenLogprobs | None], top: int, tokenizer: Tokenizer
) -> tuple[Mapping[str, RankedToken] | None, ...]:
    """By token id, as vLLM gives them."""
    spelling = Spelling(tokenizer)
    answer: list[Mapping[str, RankedToken] | None] = []
    for token, law in zip(prompt, laws, strict=True):
        if law is None:
            answer.append(None)
            continue
        ranks = {other: rank for rank, (other, _) in enumerate(law.top, start=1)}
        answer.append(
            {
                str(other): RankedToken(value, ranks.get(other), spelling.text(other))
                for other, value in _most_likely(token, law, top)
            }
        )
    return tuple(answer)


def prompt_entries(prompt: Sequence[int], laws: Sequence[TokenLogprobs | None], tokenizer: Tokenizer) -> list[Entry]:
    """An echoed prompt's tokens with their places in its text."""
    detokenizer = Detokenizer(tokenizer)
    entries, offset = [], 0
    for token, law in zip(prompt, laws, strict=True):
        entries.append(Entry(token, law, offset + detokenizer.cut_by(token)))
        offset += len(detokenizer.push((token,)))
    return entries


def finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST


def _chat_entry(entry: Entry, top: int, spelling: Spelling) -> ChatLogprob:
    assert entry.law is not None
    most_likely = _most_likely(entry.token, entry.law, top) if top else []
    return ChatLogprob(
        token=spelling.text(entry.token),
        logprob=finite(entry.law.logprob),
        bytes=tuple(spelling.bytes(entry.token)),
        top_logprobs=tuple(
            TopLogprob(spelling.text(token), value, tuple(spelling.bytes(token))) for token, value in most_likely
        ),
    )


def _by_spelling(pairs: Sequence[tuple[int, float]], spelling: Spelling) -> dict[str, float]:
    """Of tokens that are written alike the most likely one is kept."""
    values: dict[str, float] = {}
    for token, value in pairs:
        values.setdefault(spelling.text(token), value)
    return values


def _most_likely(token: int, law: TokenLogprobs, top: int) -> list[tuple[int, float]]:
    """The `top` most likely tokens, and behind them the token itself where it is not among them."""
    pairs = [(other, finite(value)) for other, value in law.top[:top]]
    if all(other != token for other, _ in pairs):
        pairs.append((token, finite(law.logprob)))
    return pairs

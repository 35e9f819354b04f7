"""What choices have said, put into the shapes of the endpoint that was asked."""

from collections.abc import Sequence
from typing import NamedTuple

from netgain.ledger.records import DraftCounts
from netgain.serving.api.choice import Choice, Piece
from netgain.serving.api.logprobs import (
    ChatLogprobs,
    Entry,
    Spelling,
    TextLogprobs,
    chat_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from netgain.serving.api.parsing.parts import Part
from netgain.serving.api.prepare import Presentation
from netgain.serving.api.shapes import (
    UNSET,
    ChatChoice,
    ChatDelta,
    Delta,
    DraftTokens,
    PromptLogprobs,
    TextChoice,
    Unset,
    Usage,
    deltas_of,
    message_of,
    text_of,
    usage_of,
)
from netgain.serving.model.tokenizer import Tokenizer


class Collected(NamedTuple):
    """All that a choice has said so far."""

    parts: list[Part]
    entries: list[Entry]

    def add(self, piece: Piece) -> None:
        self.parts.extend(piece.parts)
        self.entries.extend(piece.entries)


class Wording:
    """One per HTTP request."""

    def __init__(self, chat: bool, shown: Presentation, tokenizer: Tokenizer) -> None:
        self._chat = chat
        self._shown = shown
        self._tokenizer = tokenizer
        self._spelling = Spelling(tokenizer, shown.tokens_as_ids)

    def opening(self, choice: Choice) -> ChatDelta | None:
        """What a stream says of a choice before its text; completions say nothing."""
        return ChatDelta(choice.job.index, Delta(role="assistant", content="")) if self._chat else None

    def chunks(self, choice: Choice, piece: Piece, *, even_empty: bool) -> Sequence[ChatDelta | TextChoice]:
        """What of a piece goes into a stream; log-probabilities and the end go with the last chunk."""
        index, ended = choice.job.index, piece.finish_reason is not None
        stop_reason = choice.stop_reason if ended else UNSET
        if not self._chat:
            text = text_of(piece.parts)
            if not (text or piece.entries or ended or even_empty):
                return []
            return [TextChoice(index, text, piece.finish_reason, self._in_text(piece.entries), stop_reason)]
        deltas = list(deltas_of(piece.parts))
        if not deltas and (piece.entries or ended or even_empty):
            deltas = [Delta() if ended else Delta(content="")]
        chunks = [ChatDelta(index, delta) for delta in deltas[:-1]]
        if deltas:
            chunks.append(ChatDelta(index, deltas[-1], piece.finish_reason, self._in_chat(piece.entries), stop_reason))
        return chunks

    def whole(self, choice: Choice, said: Collected) -> ChatChoice | TextChoice:
        """One choice of a whole answer."""
        index, reason, stop = choice.job.index, choice.reason_for_client, choice.stop_reason
        if self._chat:
            return ChatChoice(index, message_of(said.parts), reason, self._in_chat(said.entries), stop)
        in_text = self._in_text(said.entries)
        return TextChoice(index, text_of(said.parts), reason, in_text, stop, self.prompt_logprobs(choice))

    def prompt_logprobs(self, choice: Choice) -> PromptLogprobs | Unset:
        """Those of the prompt, where they were asked for."""
        top = self._shown.prompt_top
        if top is None or choice.prompt_laws is None:
            return UNSET
        return prompt_logprobs(choice.job.prompt, choice.prompt_laws, top, self._tokenizer)

    def _in_chat(self, entries: Sequence[Entry]) -> ChatLogprobs | None:
        return None if self._shown.top is None else chat_logprobs(entries, self._shown.top, self._spelling)

    def _in_text(self, entries: Sequence[Entry]) -> TextLogprobs | None:
        return None if self._shown.top is None else text_logprobs(entries, self._shown.top, self._spelling)


def usage_so_far(choice: Choice) -> Usage:
    """Of one choice that has not ended."""
    return usage_of(len(choice.job.prompt), len(choice.tokens), None, choice.reasoning_tokens)


def usage_over(choices: tuple[Choice, ...], completion_tokens: int | None = None) -> Usage:
    """Counts over `choices`; a prompt with several choices counts once. Cached tokens and drafts are known when all have
    ended."""
    firsts = [choice for choice in choices if choice.job.choice == 0] or list(choices[:1])
    cached = [choice.trace.cached_tokens for choice in firsts if choice.trace is not None]
    loaded = [
        choice.trace.kv.loaded_tokens for choice in firsts if choice.trace is not None and choice.trace.kv is not None
    ]
    thoughts = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
    if completion_tokens is None:
        completion_tokens = sum(len(choice.tokens) for choice in choices)
    return usage_of(
        sum(len(choice.job.prompt) for choice in firsts),
        completion_tokens,
        sum(cached) if len(cached) == len(firsts) else None,
        sum(thoughts) if len(thoughts) == len(choices) else None,
        _drafts_of(choices),
        sum(loaded) if loaded else None,
        next((choice.trace.blending for choice in firsts if choice.trace is not None), None),
    )


def _drafts_of(choices: tuple[Choice, ...]) -> DraftTokens | None:
    """Over all choices; None while one of them runs, and where no drafts were in question."""
    counts = DraftCounts()
    for choice in choices:
        if choice.trace is None:
            return None
        counts.merge(choice.trace.drafts)
    if not counts.decided:
        return None
    by_length = {length: tuple(histogram) for length, histogram in sorted(counts.by_length.items())}
    return DraftTokens(counts.steps, tuple(counts.drafted), tuple(counts.accepted), by_length)

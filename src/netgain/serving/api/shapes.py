"""The JSON of answers, as OpenAI clients read it: whole answers and the chunks of a stream, for both endpoints."""

import msgspec

from netgain.ledger.records import RequestRecord


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """`prompt_tokens_details` is absent while it is not known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatDelta(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class TextChoice(msgspec.Struct, frozen=True):
    """Of a whole answer or of a chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or one chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChoice | ChatDelta | TextChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    netgain: RequestRecord | msgspec.UnsetType = msgspec.UNSET


class Form(msgspec.Struct, frozen=True):
    """What distinguishes the two endpoints; one per HTTP request."""

    id: str
    created: int
    model: str
    chat: bool

    def whole(self, index: int, text: str, finish_reason: str) -> ChatChoice | TextChoice:
        """One choice of a whole answer."""
        if self.chat:
            return ChatChoice(index, ChatMessage("assistant", text), finish_reason)
        return TextChoice(index, text, finish_reason)

    def opening(self, index: int) -> ChatDelta | None:
        """What a stream says of a choice before its text; completions say nothing."""
        return ChatDelta(index, Delta(role="assistant", content="")) if self.chat else None

    def piece(self, index: int, text: str, finish_reason: str | None) -> ChatDelta | TextChoice:
        """More text of one choice, or its end."""
        if not self.chat:
            return TextChoice(index, text, finish_reason)
        return ChatDelta(index, Delta(content=text) if text or finish_reason is None else Delta(), finish_reason)

    def answer(
        self,
        choices: tuple[ChatChoice | ChatDelta | TextChoice, ...],
        usage: Usage | msgspec.UnsetType | None,
        record: RequestRecord | None = None,
        *,
        chunk: bool,
    ) -> bytes:
        """JSON of a whole answer or of a chunk."""
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        return msgspec.json.encode(
            Answer(
                id=self.id,
                object=kind,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                netgain=msgspec.UNSET if record is None else record,
            )
        )


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> Usage:
    """Counts as clients read them; `cached_tokens` None: not known (yet)."""
    details = None if cached_tokens is None else CachedTokens(cached_tokens)
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)

"""The JSON of answers, as OpenAI clients read it: whole answers and the chunks of a stream, for both endpoints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from netgain.ledger.records import BlendCounts, RequestRecord
from netgain.serving.api.logprobs import ChatLogprobs, RankedToken, TextLogprobs
from netgain.serving.api.parsing.parts import Content, Part, Reasoning, ToolCallArguments, ToolCallStart

PromptLogprobs = tuple[Mapping[str, RankedToken] | None, ...]
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class CachedTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `cached_tokens`, `loaded_tokens` came from KV tiers beyond the device (absent where none were asked)."""

    cached_tokens: int
    loaded_tokens: int | None = None


class ReasoningTokens(msgspec.Struct, frozen=True):
    """Tokens up to the end of the thoughts, their opening tag included."""

    reasoning_tokens: int


class DraftTokens(msgspec.Struct, frozen=True):
    """What speculation did for the request, as its record has it (ledger.records.DraftCounts): `drafted[i]` drafts reached
    position i and `accepted[i]` were accepted there; `by_length[k][a]` verify steps had k drafts, of which a were accepted."""

    steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    by_length: dict[int, tuple[int, ...]]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The details are absent while, or where, they are not known; those of drafts also where there is no speculation,
    those of blending where no chunks were given."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None
    draft_tokens_details: DraftTokens | None = None
    blending_details: BlendCounts | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """`arguments` is JSON text, in a stream a piece of it."""

    name: str | Unset
    arguments: str


class MadeCall(msgspec.Struct, frozen=True):
    """A call in a whole answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a call; only its first piece has id, type and name."""

    index: int
    function: CalledFunction
    id: str | Unset = UNSET
    type: str | Unset = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """`content` is null beside tool calls where there is none."""

    role: str
    content: str | None
    reasoning_content: str | Unset = UNSET
    tool_calls: tuple[MadeCall, ...] | Unset = UNSET


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[CallDelta, ...] | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None


class ChatDelta(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | Unset | None = UNSET


class TextChoice(msgspec.Struct, frozen=True):
    """Of a whole answer or of a chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    stop_reason: str | int | Unset | None = UNSET
    prompt_logprobs: PromptLogprobs | Unset = UNSET


AnyChoice = ChatChoice | ChatDelta | TextChoice


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt_logprobs`: a whole chat's; `netgain`: the record of the one choice, or those of all of them."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | Unset | None = UNSET
    prompt_logprobs: PromptLogprobs | Unset = UNSET
    netgain: RequestRecord | tuple[RequestRecord, ...] | Unset = UNSET


class ChatAnswer(_Answer, frozen=True, kw_only=True):
    """A whole answer of /v1/chat/completions."""

    choices: tuple[ChatChoice, ...]


class ChatChunk(_Answer, frozen=True, kw_only=True):
    """One event of its stream."""

    choices: tuple[ChatDelta, ...]


class TextAnswer(_Answer, frozen=True, kw_only=True):
    """A whole answer of /v1/completions, or one event of its stream."""

    choices: tuple[TextChoice, ...]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What all answers to one HTTP request have in common."""

    id: str
    created: int
    model: str
    fingerprint: str
    chat: bool

    def answer(
        self,
        choices: tuple[AnyChoice, ...],
        usage: Usage | Unset | None,
        records: tuple[RequestRecord, ...] = (),
        *,
        chunk: bool,
        prompt_logprobs: PromptLogprobs | Unset = UNSET,
    ) -> bytes:
        """JSON of a whole answer or of a chunk."""
        kind, name = self._kind(chunk)
        return msgspec.json.encode(
            kind(
                id=self.id,
                object=name,
                created=self.created,
                model=self.model,
                system_fingerprint=self.fingerprint,
                choices=choices,
                usage=usage,
                prompt_logprobs=prompt_logprobs,
                netgain=UNSET if not records else records[0] if len(records) == 1 else records,
            )
        )

    def _kind(self, chunk: bool) -> tuple[Any, str]:
        if not self.chat:
            return TextAnswer, "text_completion"
        return (ChatChunk, "chat.completion.chunk") if chunk else (ChatAnswer, "chat.completion")


def message_of(parts: Iterable[Part]) -> ChatMessage:
    """A whole chat answer."""
    content: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, ToolCallStart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        match part:
            case Content():
                content.append(part.text)
            case Reasoning():
                thoughts.append(part.text)
            case ToolCallStart():
                calls[part.index] = part
                arguments[part.index] = []
            case ToolCallArguments():
                arguments[part.index].append(part.text)
    text = "".join(content)
    made = tuple(
        MadeCall(call.id, CalledFunction(call.name, "".join(arguments[index]))) for index, call in calls.items()
    )
    return ChatMessage(
        "assistant",
        None if made and not text else text,
        "".join(thoughts) if thoughts else UNSET,
        made or UNSET,
    )


def deltas_of(parts: Sequence[Part]) -> Iterator[Delta]:
    """One delta for each run of parts of a kind, since clients look for one kind only; of a call, for each call."""
    at = 0
    while at < len(parts):
        first, end = parts[at], at + 1
        match first:
            case Content() | Reasoning():
                texts = [first.text]
                while end < len(parts) and isinstance(part := parts[end], type(first)):
                    texts.append(part.text)
                    end += 1
                text = "".join(texts)
                yield Delta(content=text) if isinstance(first, Content) else Delta(reasoning_content=text)
            case ToolCallStart() | ToolCallArguments():
                texts = [first.text] if isinstance(first, ToolCallArguments) else []
                while (
                    end < len(parts) and isinstance(part := parts[end], ToolCallArguments) and part.index == first.index
                ):
                    texts.append(part.text)
                    end += 1
                yield Delta(tool_calls=(_call_delta(first, "".join(texts)),))
        at = end


def text_of(parts: Sequence[Part]) -> str:
    """What a completion shows."""
    if len(parts) == 1 and isinstance(parts[0], Content):  # nearly always, once per token
        return parts[0].text
    return "".join(part.text for part in parts if isinstance(part, Content))


def usage_of(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None,
    reasoning_tokens: int | None,
    drafts: DraftTokens | None = None,
    loaded_tokens: int | None = None,
    blending: BlendCounts | None = None,
) -> Usage:
    """Counts as clients read them; None: not known (yet)."""
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        None if cached_tokens is None else CachedTokens(cached_tokens, loaded_tokens),
        None if reasoning_tokens is None else ReasoningTokens(reasoning_tokens),
        drafts,
        blending,
    )


def _call_delta(part: ToolCallStart | ToolCallArguments, arguments: str) -> CallDelta:
    if isinstance(part, ToolCallStart):
        return CallDelta(part.index, CalledFunction(part.name, arguments), part.id, "function")
    return CallDelta(part.index, CalledFunction(UNSET, arguments))

"""POST /tokenize and /detokenize, in vLLM's shapes: what a prompt is made of, without generating."""

from typing import Annotated, Any

import msgspec
from pydantic import Field

from netgain.serving.api.chat_protocol import ConversationFields
from netgain.serving.api.fields import Fields, Whole
from netgain.serving.api.logprobs import Spelling
from netgain.serving.api.served import ServedModel


class TokenizeText(Fields):
    """`add_special_tokens`: with the model's own start tokens, as a completion of this prompt would have them."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(ConversationFields):
    """The prompt of these messages, as a chat would have it."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Fields):
    """Text of these ids, control tokens included."""

    model: str | None = None
    tokens: Annotated[list[Annotated[Whole, Field(ge=0)]], Field(fail_fast=True)]


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def tokenize(data: bytes, served: ServedModel) -> Tokenized:
    """Raises ValidationError, ApiError or RequestRejected."""
    kind = TokenizeChat if _has_messages(data) else TokenizeText
    request = kind.model_validate_json(data)
    served.check_name(request.model)
    if isinstance(request, TokenizeChat):
        ids = served.chat_prompt(request, request.tools or ())
    else:
        start = request.add_special_tokens is not False
        ids = tuple(served.tokenizer.encode(request.prompt, start=start))
    spelling = Spelling(served.tokenizer)
    strings = tuple(map(spelling.text, ids)) if request.return_token_strs else None
    return Tokenized(len(ids), served.max_length, ids, strings)


def detokenize(data: bytes, served: ServedModel) -> Detokenized:
    """Raises ValidationError, ApiError or RequestRejected."""
    request = DetokenizeRequest.model_validate_json(data)
    served.check_name(request.model)
    served.check_ids(request.tokens, "tokens")
    return Detokenized(served.tokenizer.decode(request.tokens, keep_control=True))


def _has_messages(data: bytes) -> bool:
    try:
        fields: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False  # pydantic says what is wrong
    return isinstance(fields, dict) and "messages" in fields

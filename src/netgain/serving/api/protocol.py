"""What clients may ask. A wrong value is refused with its field's name; so is a known field that would change the answer
and is not offered here. Other unknown fields are let through, since clients send many that change nothing."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_SALT_CHARACTERS = 256
COMPLETION_MAX_TOKENS = 16  # what OpenAI's /v1/completions generates when nothing is said

# Fields that would change the answer, with the values that ask for nothing.
_NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "use_beam_search": (None, False),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "structured_outputs": (None,),
}


def _texts(value: Any) -> Any:
    """`stop`: nothing, a string or a list of strings -> a list."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("give a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings are taken, not {len(stops)}")
    if any(not stop or len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise ValueError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def _text_content(value: Any) -> Any:
    """A message's content: a string, nothing, or a list of text parts -> a string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("give a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", None) or not isinstance(part, dict):
            raise ValueError(f"only text parts are taken, not {kind!r}")
        if not isinstance(part.get("text"), str):
            raise ValueError("a text part needs a string in its 'text'")
        texts.append(part["text"])
    return "".join(texts)


def _prompts(value: Any) -> Any:
    """`prompt`: text, token ids, or a list of either -> a list of text or token ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a string, a list of token ids, or a non-empty list of either")
    prompts = [value] if all(_is_id(item) for item in value) else value
    for prompt in prompts:
        is_ids = isinstance(prompt, list) and all(_is_id(item) for item in prompt)
        if not isinstance(prompt, str) and not is_ids:
            raise ValueError("give a string, a list of token ids, or a non-empty list of either")
        if not prompt:
            raise ValueError("a prompt is empty; send at least one token")
    return prompts


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("give a finite number")
    return value


Stops = Annotated[list[str], BeforeValidator(_texts)]
Number = Annotated[float, BeforeValidator(_finite)]


class _Fields(BaseModel):
    """JSON values as they are: no strings for numbers, no booleans for counts."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(_Fields):
    """With `continuous_usage_stats` every chunk carries the usage so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class NetgainOptions(_Fields):
    """Asks for this server's own account: `record` adds a RequestRecord to the end of the answer, `tokens` the token ids
    to that record. `speculate` false opts out of speculation."""

    record: bool = False
    tokens: bool = False
    speculate: bool = True


class GenerationRequest(_Fields):
    """What both endpoints take. None means that nothing was said. Prompts under different `cache_salt` share no cache entry."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: Stops = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    netgain: NetgainOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, neutral in _NOT_OFFERED.items():
                if name in data and not any(type(data[name]) is type(v) and data[name] == v for v in _widened(neutral)):
                    raise NotOffered(name)
        return data

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream: true")
        return self

    @property
    def output_limit(self) -> int | None:
        """The most tokens to generate, None: the client did not say."""
        return self.max_tokens

    @property
    def default_limit(self) -> int | None:
        """The most tokens where the client did not say, None: as many as fit."""
        return None


class NotOffered(ValueError):
    """A field asks for something that this server does not do."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is not supported by this server; leave it out")
        self.name = name


class Message(_Fields):
    """One turn. `content` becomes a plain string."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_text_content)] = ""
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """As chat templates read it."""
        turn = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        return turn if self.name is None else {**turn, "name": self.name}


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]

    @property
    def default_limit(self) -> int | None:
        return COMPLETION_MAX_TOKENS


def _widened(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Whole numbers also as floats: 0.0 asks for as little as 0."""
    return (*values, *(float(value) for value in values if isinstance(value, int) and not isinstance(value, bool)))

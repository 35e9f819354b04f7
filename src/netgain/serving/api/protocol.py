"""What clients may ask of both endpoints, and of /v1/completions. A wrong value is refused with its field's name."""

import difflib
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from netgain.serving.api.fields import (
    MAX_CHUNKS,
    MAX_DEADLINE_S,
    MAX_LOGPROBS,
    MAX_PROMPTS,
    MAX_SALT_CHARACTERS,
    MIN_DEADLINE_S,
    Fields,
    LogitBias,
    Number,
    Stops,
    StopTokenIds,
    Whole,
    WrongField,
)
from netgain.serving.api.refused import COMPLETIONS_REFUSE, refuse
from netgain.serving.api.structure import Structured

_NAME_CHARACTERS = 64  # of an unknown name are looked at and shown
COMPLETION_MAX_TOKENS = 16  # what OpenAI's /v1/completions generates when nothing is said


class StreamOptions(Fields):
    """With `continuous_usage_stats` every chunk carries the usage so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class NetgainOptions(Fields):
    """Asks for this server's own account: `record` adds a RequestRecord to the end of the answer, `tokens` the token ids
    to that record. `speculate` false opts out of speculation, `max_drafts` caps the drafts of a step. `chunks` are
    texts that stand in the prompt and are taken from where they were computed apart, of whose tokens `blend_ratio` is
    computed anew (0: none, 1: all, which is exact; default: what the server was set to). `pin_s`: KV tiers keep the
    conversation from eviction for so long, and no longer than the server allows. `from_tiers`: the prefix is loaded from
    there, whatever the device has. `logprobs_from`: of a prompt whose log-probabilities are asked for, those that follow its
    first so many tokens are not wanted, so that these tokens may be loaded. An unknown field is refused: nobody else's
    client sends any."""

    model_config = ConfigDict(extra="forbid")

    record: bool = False
    tokens: bool = False
    speculate: bool = True
    max_drafts: int | None = Field(default=None, ge=0)
    chunks: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHUNKS)] | None = (
        None
    )
    blend_ratio: Annotated[Number, Field(ge=0, le=1)] | None = None
    pin_s: Annotated[Number, Field(ge=0, le=MAX_DEADLINE_S)] | None = None
    from_tiers: bool = False
    logprobs_from: Annotated[Whole, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields:
                near = difflib.get_close_matches(name[:_NAME_CHARACTERS], cls.model_fields, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"its fields are {', '.join(cls.model_fields)}"
                raise WrongField("netgain", f"netgain has no field {name[:_NAME_CHARACTERS]!r}; {hint}")
        return data


class GenerationRequest(Structured):
    """What both endpoints take. None means that nothing was said. Prompts under different `cache_salt` share no cache entry."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    logit_bias: LogitBias = ()
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    n: Annotated[Whole, Field(ge=1)] | None = None
    best_of: Annotated[Whole, Field(ge=1)] | None = None
    stop: Stops = Field(default_factory=list)
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Annotated[Whole, Field(ge=-(2**31), lt=2**31)] | None = None
    timeout_s: Annotated[Number, Field(ge=MIN_DEADLINE_S, le=MAX_DEADLINE_S)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    netgain: NetgainOptions | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise WrongField("stream_options", "stream_options is only for stream: true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise WrongField(
                "best_of",
                f"best_of is {self.best_of} and n is {self.n or 1}: answers are not ranked here, so leave best_of out",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise WrongField("prompt_logprobs", "prompt_logprobs come with a whole answer only: leave it or stream out")
        return self

    @property
    def output_limit(self) -> int | None:
        """The most tokens to generate, None: the client did not say."""
        return self.max_tokens

    @property
    def default_limit(self) -> int | None:
        """The most tokens where the client did not say, None: as many as fit."""
        return None

    @property
    def top(self) -> int | None:
        """How many of the most likely tokens to give per position of the answer; None: no log-probabilities."""
        raise NotImplementedError


def _prompts(value: Any) -> Any:
    """`prompt`: text, token ids, or a list of either -> a list of text or token ids."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("give a string, a list of token ids, or a non-empty list of either")
    prompts = [value] if all(_is_id(item) for item in value) else value
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"{len(prompts)} prompts were sent, at most {MAX_PROMPTS} are taken")
    prompts = [_whole_ids(prompt) if isinstance(prompt, list) else prompt for prompt in prompts]
    for prompt in prompts:
        is_ids = isinstance(prompt, list) and all(_is_id(item) for item in prompt)
        if not isinstance(prompt, str) and not is_ids:
            raise ValueError("give a string, a list of token ids, or a non-empty list of either")
        if not prompt:
            raise ValueError("a prompt is empty; send at least one token")
    return prompts


def _is_id(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _whole_ids(prompt: list[Any]) -> list[Any]:
    return [int(item) if isinstance(item, float) and item.is_integer() else item for item in prompt]


_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_SEVERAL = {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1}

Prompts = Annotated[
    list[str | list[int]], BeforeValidator(_prompts), WithJsonSchema({"anyOf": [_TEXT, _IDS, _SEVERAL]})
]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[Whole, Field(ge=0)] | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, data: Any) -> Any:
        refuse(data, COMPLETIONS_REFUSE)
        return data

    @property
    def default_limit(self) -> int | None:
        return COMPLETION_MAX_TOKENS

    @property
    def top(self) -> int | None:
        return self.logprobs

"""From a checked HTTP request to what the engine gets: prompt ids, sampling with its defaults, one job per choice."""

import secrets

import msgspec

from netgain.errors import RequestRejected
from netgain.serving.api.errors import ApiError
from netgain.serving.api.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    NetgainOptions,
    StreamOptions,
)
from netgain.serving.api.served import ServedModel
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import LimitSettings


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate; `index` is its place in the answer, `choice` its number among those of the same prompt."""

    index: int
    choice: int
    prompt: tuple[int, ...]
    sampling: SamplingParams


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request, ready to be submitted."""

    jobs: tuple[Job, ...]
    chat: bool
    stream: bool
    stream_options: StreamOptions
    netgain: NetgainOptions
    stops: tuple[str, ...]
    salt: bytes = b""


def prepare(request: GenerationRequest, served: ServedModel, limits: LimitSettings, max_waiting: int) -> Prepared:
    """Check against the model and the server's limits, render and tokenise; `max_waiting` choices fit the queue.

    Raises ApiError or RequestRejected.
    """
    if request.model is not None and request.model != served.name:
        raise ApiError(
            404,
            f"the model {request.model!r} is not served here; this server has {served.name!r}",
            param="model",
            code="model_not_found",
        )
    choices = 1 if request.n is None else request.n
    if choices > limits.max_choices:
        raise ApiError(400, f"n is {choices}, the limit of this server is {limits.max_choices}", param="n")
    options = request.netgain or NetgainOptions()
    prompts = _prompts(request, served, limits)
    if choices * len(prompts) > max_waiting:  # 429 would tell the client to try again for ever
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n = {choices} are {choices * len(prompts)} answers at once, the queue of this "
            f"server holds {max_waiting} (scheduler.max_waiting): send fewer per request",
            param="n" if len(prompts) == 1 else "prompt",
        )
    if options.record and choices * len(prompts) > 1:
        raise ApiError(400, "netgain.record describes one choice; ask for one prompt and n = 1", param="netgain.record")
    # without a seed the answer shall differ from call to call; all choices of a call then share the drawn one
    seed = secrets.randbits(63) if request.seed is None else request.seed
    jobs = tuple(
        Job(index=at * choices + choice, choice=choice, prompt=prompt, sampling=sampling)
        for at, prompt in enumerate(prompts)
        for sampling in (_sampling(request, len(prompt), seed, served, limits),)
        for choice in range(choices)
    )
    return Prepared(
        jobs=jobs,
        chat=isinstance(request, ChatRequest),
        stream=bool(request.stream),
        stream_options=request.stream_options or StreamOptions(),
        netgain=options,
        stops=tuple(request.stop),
        salt=(request.cache_salt or "").encode(),
    )


def _prompts(request: GenerationRequest, served: ServedModel, limits: LimitSettings) -> list[tuple[int, ...]]:
    if isinstance(request, ChatRequest):
        return [served.chat_prompt(request.messages)]
    assert isinstance(request, CompletionRequest)
    if len(request.prompt) > limits.max_prompts:
        raise ApiError(
            400, f"{len(request.prompt)} prompts were sent, the limit is {limits.max_prompts}", param="prompt"
        )
    return [served.plain_prompt(prompt) for prompt in request.prompt]


def _sampling(
    request: GenerationRequest, prompt_tokens: int, seed: int, served: ServedModel, limits: LimitSettings
) -> SamplingParams:
    for token in request.stop_token_ids or ():
        if token >= served.vocab_size:
            raise RequestRejected(
                f"stop_token_ids holds {token}; the model's token ids are 0 to {served.vocab_size - 1}",
                "stop_token_ids",
            )
    return SamplingParams(
        max_tokens=_max_tokens(request, prompt_tokens, served, limits),
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=min(max(0, request.top_k or 0), served.vocab_size),  # more than all is all, and fits 64 bits
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def _max_tokens(request: GenerationRequest, prompt_tokens: int, served: ServedModel, limits: LimitSettings) -> int:
    asked = request.output_limit
    room = served.max_length - prompt_tokens
    param = "messages" if isinstance(request, ChatRequest) else "prompt"
    if room < 1:
        raise ApiError(
            400,
            f"the prompt has {prompt_tokens} tokens; {served.name} takes {served.max_length} on this server, prompt and "
            "answer together: shorten it",
            param=param,
            code="context_length_exceeded",
        )
    if asked is None:
        return min(room, request.default_limit or room, limits.max_tokens or room)
    if limits.max_tokens is not None and asked > limits.max_tokens:
        raise ApiError(
            400, f"max_tokens is {asked}, the limit of this server is {limits.max_tokens}", param="max_tokens"
        )
    if asked > room:
        raise ApiError(
            400,
            f"the prompt has {prompt_tokens} tokens and max_tokens is {asked}; {served.name} takes {served.max_length} on "
            f"this server, prompt and answer together: ask for at most {room}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return asked

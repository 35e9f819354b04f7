"""From a checked HTTP request to what the engine gets: prompt ids, sampling with its defaults, one job per choice."""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from netgain.errors import RequestRejected
from netgain.serving.api.auth import ANONYMOUS, Identity
from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.errors import ApiError
from netgain.serving.api.parsing.parts import OutputParser
from netgain.serving.api.protocol import CompletionRequest, GenerationRequest, NetgainOptions, StreamOptions
from netgain.serving.api.served import ServedModel
from netgain.serving.engine.request import Grammar, SamplingParams
from netgain.serving.runtime.config import LimitSettings
from netgain.serving.tiers.blending.joined import Chunks, find_spans
from netgain.serving.tiers.blending.selection import Deviating, Naive
from netgain.wording import count


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One choice to generate; `index` is its place in the answer, `choice` its number among those of the same prompt.
    `echo` is the prompt's text where the answer begins with it."""

    index: int
    choice: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    echo: str | None = None
    chunks: Chunks | None = None


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How the tokens of a choice are shown. `keep`: control tokens that stay in the text; `continues`: the text goes on with
    that of the prompt; `top`: how many log-probabilities per token (None: not even the token's own); `new_parser` reads
    reasoning and tool calls; `one_call` drops all calls behind the first."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    keep: frozenset[str] = frozenset()
    continues: bool = False
    top: int | None = None
    prompt_top: int | None = None
    tokens_as_ids: bool = False
    new_parser: Callable[[], OutputParser] | None = None
    reads_reasoning: bool = False
    one_call: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An HTTP request, ready to be submitted. `timeout_s` counts from its arrival."""

    jobs: tuple[Job, ...]
    chat: bool
    stream: bool
    stream_options: StreamOptions
    netgain: NetgainOptions
    shown: Presentation
    structure: str | None = None
    salt: bytes = b""
    priority: int = 0
    timeout_s: float | None = None

    @property
    def most_tokens(self) -> int:
        """The most that the request can use: every prompt once, and every answer at its longest."""
        prompts = sum(len(job.prompt) for job in self.jobs if job.choice == 0)
        return prompts + sum(job.sampling.max_tokens for job in self.jobs)


def prepare(
    request: GenerationRequest,
    served: ServedModel,
    limits: LimitSettings,
    max_waiting: int,
    identity: Identity = ANONYMOUS,
) -> Prepared:
    """Check against the model and the server's limits, render and tokenise; `max_waiting` choices fit the queue.

    Raises ApiError or RequestRejected.
    """
    served.check_name(request.model)
    own = identity.within(limits)
    whose, limits = ("this server" if own is limits else "this API key"), own
    choices = 1 if request.n is None else request.n
    if choices > limits.max_choices:
        raise ApiError(400, f"n is {choices}, the limit of this server is {limits.max_choices}", param="n")
    prompts = _prompts(request, served, limits)
    if choices * len(prompts) > max_waiting:  # 429 would tell the client to try again for ever
        raise ApiError(
            400,
            f"{len(prompts)} prompts with n = {choices} are {choices * len(prompts)} answers at once, the queue of this "
            f"server holds {max_waiting} (scheduler.max_waiting): send fewer per request",
            param="n" if len(prompts) == 1 else "prompt",
        )
    structure, grammar = request.structure or (None, None)
    if isinstance(request, ChatRequest) and request.forced_tools:
        structure, grammar = "tools", served.forced_call(request.forced_tools, request.may_call_several)
    # without a seed the answer shall differ from call to call; all choices of a call then share the drawn one
    seed = secrets.randbits(63) if request.seed is None else request.seed
    echo = isinstance(request, CompletionRequest) and request.echo
    chunks = _chunks(request.netgain, prompts, served)
    jobs = tuple(
        Job(
            index=at * choices + choice,
            choice=choice,
            prompt=prompt,
            sampling=sampling,
            echo=served.text_of(prompt) if echo else None,
            chunks=chunks,
        )
        for at, prompt in enumerate(prompts)
        for sampling in (_sampling(request, len(prompt), seed, grammar, served, limits, whose),)
        for choice in range(choices)
    )
    return Prepared(
        jobs=jobs,
        chat=isinstance(request, ChatRequest),
        stream=bool(request.stream),
        stream_options=request.stream_options or StreamOptions(),
        netgain=request.netgain or NetgainOptions(),
        shown=_presentation(request, prompts[0], served, grammar is not None),
        structure=structure,
        salt=identity.salt(request.cache_salt),
        priority=identity.priority(request.priority),
        timeout_s=request.timeout_s,
    )


def _prompts(request: GenerationRequest, served: ServedModel, limits: LimitSettings) -> list[tuple[int, ...]]:
    if isinstance(request, ChatRequest):
        return [served.chat_prompt(request, request.callable_tools, request.reasoning_effort)]
    assert isinstance(request, CompletionRequest)
    if len(request.prompt) > limits.max_prompts:
        raise ApiError(
            400, f"{len(request.prompt)} prompts were sent, the limit is {limits.max_prompts}", param="prompt"
        )
    start = request.add_special_tokens is not False
    return [served.plain_prompt(prompt, start) for prompt in request.prompt]


def _chunks(options: NetgainOptions | None, prompts: list[tuple[int, ...]], served: ServedModel) -> Chunks | None:
    if options is None or options.chunks is None:
        if options is not None and options.blend_ratio is not None:
            raise ApiError(400, "netgain.blend_ratio is for netgain.chunks, and there are none", param="netgain")
        return None
    if len(prompts) > 1:
        raise ApiError(400, f"netgain.chunks are for one prompt, {len(prompts)} were sent", param="netgain")
    try:
        spans = find_spans(prompts[0], [served.tokenizer.encode(chunk) for chunk in options.chunks])
    except ValueError as error:
        number, _, why = str(error).partition(": ")
        raise ApiError(400, f"netgain.chunks[{number}]: {why}", param="netgain") from error
    ratio = options.blend_ratio
    return Chunks(spans=spans, selection=None if ratio is None else Naive() if ratio == 0 else Deviating(float(ratio)))


def _presentation(
    request: GenerationRequest, prompt: tuple[int, ...], served: ServedModel, forced: bool
) -> Presentation:
    new_parser = None
    keep = served.all_markers if request.skip_special_tokens is False else frozenset[str]()
    one_call = reads_reasoning = False
    if isinstance(request, ChatRequest):
        tools = frozenset(tool.function.name for tool in request.callable_tools)
        form = served.output_format(bool(tools))
        reads_reasoning = form.reasoning is not None
        one_call = request.parallel_tool_calls is False
        if tools or reads_reasoning:
            inside = not forced and form.opens_reasoning(served.tokenizer, prompt)
            source = random.Random(secrets.randbits(64))
            new_parser = lambda: form.parser(tools=tools, inside_reasoning=inside, source=source)  # noqa: E731
            keep |= form.keep(bool(tools))
    return Presentation(
        stops=tuple(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        keep=keep,
        continues=not isinstance(request, ChatRequest) or bool(request.continue_final_message),
        top=request.top,
        prompt_top=request.prompt_logprobs,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        new_parser=new_parser,
        reads_reasoning=reads_reasoning,
        one_call=one_call,
    )


def _sampling(
    request: GenerationRequest,
    prompt_tokens: int,
    seed: int,
    grammar: Grammar | None,
    served: ServedModel,
    limits: LimitSettings,
    whose: str,
) -> SamplingParams:
    for name, ids in (
        ("stop_token_ids", request.stop_token_ids or ()),
        ("logit_bias", [token for token, _ in request.logit_bias]),
    ):
        for token in ids:
            if token >= served.vocab_size:
                raise RequestRejected(
                    f"{name} holds {token}; the model's token ids are 0 to {served.vocab_size - 1}", name
                )
    max_tokens = _max_tokens(request, prompt_tokens, served, limits, whose)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise RequestRejected(
            f"min_tokens is {min_tokens}, but at most {max_tokens} tokens are generated here", "min_tokens"
        )
    prompt_tops = [request.prompt_logprobs]
    if isinstance(request, CompletionRequest) and request.echo:
        prompt_tops.append(request.top)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(request.temperature, 1.0),
        top_k=min(max(0, request.top_k or 0), served.vocab_size),  # more than all is all, and fits 64 bits
        top_p=_or(request.top_p, 1.0),
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias,
        seed=seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        logprobs=request.top,
        prompt_logprobs=max((top for top in prompt_tops if top is not None), default=None),
        prompt_logprobs_from=0 if request.netgain is None else request.netgain.logprobs_from,
        grammar=grammar,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _max_tokens(
    request: GenerationRequest, prompt_tokens: int, served: ServedModel, limits: LimitSettings, whose: str
) -> int:
    """`whose` names in a refusal what limits.max_tokens comes from: the server, or the request's key."""
    asked = request.output_limit
    room = served.max_length - prompt_tokens
    param = "messages" if isinstance(request, ChatRequest) else "prompt"
    if room < (0 if asked == 0 else 1):
        raise ApiError(
            400,
            f"the prompt has {count(prompt_tokens, 'token')}; {served.name} takes {served.max_length} on this server, prompt and "
            "answer together: shorten it",
            param=param,
            code="context_length_exceeded",
        )
    if asked is None:
        return min(room, request.default_limit or room, limits.max_tokens or room)
    if limits.max_tokens is not None and asked > limits.max_tokens:
        raise ApiError(400, f"max_tokens is {asked}, the limit of {whose} is {limits.max_tokens}", param="max_tokens")
    if asked > room:
        raise ApiError(
            400,
            f"the prompt has {count(prompt_tokens, 'token')} and max_tokens is {asked}; {served.name} takes {served.max_length} "
            f"on this server, prompt and answer together: ask for at most {room}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return asked

"""Generation without a server: the same engine, driven in this process until every prompt is answered."""

import asyncio
import itertools
from collections.abc import Sequence

import msgspec

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import EngineTrace
from netgain.serving.engine.request import Output, Request, SamplingParams, TokenLogprobs
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.tiers.blending.joined import Chunks


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `finish_reason` is "stop", "length" or "error" (then `error` says why).

    `text` leaves out the token that ended it. `logprobs` (one per output token) and `prompt_logprobs` (one per prompt token,
    the first None) are there where the sampling asked for them.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish_reason: str
    trace: EngineTrace
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


class LLM:
    """An engine in this process. Use as a context manager, or call `close`."""

    def __init__(self, config: EngineConfig | None = None, collector: Collector | None = None) -> None:
        """`collector` takes the records of its steps, which nobody sees otherwise."""
        self._clock = WallClock()
        self.built = build_engine(config or EngineConfig(), self._clock, collector)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        chunks: Sequence[Chunks | None] | None = None,
        salt: bytes = b"",
        from_tiers: bool = False,
    ) -> list[Completion]:
        """Answer every prompt (text, or token ids), batched together; one sampling for all or one each. `chunks` (one entry per
        prompt) are taken from where they were computed apart; their positions are those of the prompt's tokens. Only prompts of
        the same `salt` (see Scope) share what is cached; `from_tiers` as Request has it.

        Raises RequestRejected for a prompt that can never run; the others are then not started.
        """
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        tokenizer = self.built.loaded.tokenizer
        requests = [
            Request(
                id=f"offline-{next(self._ids)}",
                prompt=tuple(tokenizer.encode(prompt, start=True) if isinstance(prompt, str) else prompt),
                sampling=one,
                received_s=self._clock.now(),
                chunks=apart,
                salt=salt,
                from_tiers=from_tiers,
            )
            for prompt, one, apart in zip(prompts, params, chunks or [None] * len(prompts), strict=True)
        ]
        return asyncio.run(self._run(requests))

    def close(self) -> None:
        self.built.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _run(self, requests: list[Request]) -> list[Completion]:
        engine = self.built.engine
        outputs: dict[str, list[Output]] = {request.id: [] for request in requests}
        submitted: list[str] = []
        try:
            for request in requests:
                if request.chunks is not None:
                    await engine.prepare(request)
                engine.submit(request)
                submitted.append(request.id)
            while engine.has_work:
                for output in await engine.step():
                    outputs[output.request_id].append(output)
        except BaseException:
            for request_id in submitted:
                engine.abort(request_id)
            await engine.step()
            raise
        return [self._completion(request, outputs[request.id]) for request in requests]

    def _completion(self, request: Request, outputs: list[Output]) -> Completion:
        last = outputs[-1]
        assert last.finish_reason is not None
        assert last.trace is not None
        tokens = tuple(token for output in outputs for token in output.tokens)
        shown = tokens[:-1] if last.finish_reason == "stop" else tokens
        wanted = request.sampling.logprobs is not None
        return Completion(
            prompt_ids=request.prompt,
            output_ids=tokens,
            text=self.built.loaded.tokenizer.decode(shown, continues=True),
            finish_reason=last.finish_reason,
            trace=last.trace,
            error=last.error,
            logprobs=tuple(entry for output in outputs for entry in output.logprobs) if wanted else None,
            prompt_logprobs=next((o.prompt_logprobs for o in outputs if o.prompt_logprobs is not None), None),
        )

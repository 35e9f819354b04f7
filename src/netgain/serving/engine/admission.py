"""What a request must be before anything is kept for it."""

import math

from netgain.errors import RequestRejected
from netgain.serving.engine.grammar import Constraint, Grammars
from netgain.serving.engine.request import Request
from netgain.serving.engine.sampling import validate
from netgain.serving.tiers.blending.joined import Chunks

# An answer travels in one frame between processes; each value is about 16 bytes of it.
MAX_PROMPT_LOGPROBS = 2_000_000


def check_request(request: Request, vocab_size: int, *, blends: bool = False, tiers: bool = False) -> None:
    """Raises RequestRejected naming the parameter. Lengths are the scheduler's to check, grammars the compiler's; `blends` says
    whether this engine joins chunks, `tiers` whether it has KV tiers."""
    if request.from_tiers and not tiers:
        raise RequestRejected("there are no KV tiers here to load from: leave from_tiers out", "from_tiers")
    if not request.prompt:
        raise RequestRejected("the prompt has no tokens: send at least one", "prompt")
    if not 0 <= min(request.prompt) <= max(request.prompt) < vocab_size:
        raise RequestRejected(f"the prompt holds token ids outside 0..{vocab_size - 1}", "prompt")
    validate(request.sampling, vocab_size)
    if request.chunks is not None:
        _check_chunks(request, request.chunks, blends)
    deadline_s = request.deadline_s
    if deadline_s is not None and not math.isfinite(deadline_s):
        raise RequestRejected(
            f"deadline_s is {deadline_s!r}; give a finite time of the host's monotonic clock", "deadline_s"
        )
    wanted, first = request.sampling.prompt_logprobs, request.sampling.prompt_logprobs_from
    if first and (wanted is None or not 0 < first < len(request.prompt) - 1):
        raise RequestRejected(
            f"logprobs_from is {first}: it goes with log-probabilities of the prompt, and leaves at least one of its "
            f"{len(request.prompt)} tokens",
            "logprobs_from",
        )
    if wanted is not None and (1 + wanted) * len(request.prompt) > MAX_PROMPT_LOGPROBS:
        raise RequestRejected(
            f"prompt_logprobs {wanted} over {len(request.prompt)} prompt tokens are {(1 + wanted) * len(request.prompt)} "
            f"values, the limit is {MAX_PROMPT_LOGPROBS}: lower prompt_logprobs or shorten the prompt",
            "prompt_logprobs",
        )


def stop_ids_of(request: Request, eos_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end its answer."""
    eos = frozenset() if request.sampling.ignore_eos else eos_ids
    return eos | frozenset(request.sampling.stop_token_ids)


def constraint_of(request: Request, stop_ids: frozenset[int], grammars: Grammars | None) -> Constraint | None:
    """What its grammar allows; None where there is none. Raises RequestRejected."""
    grammar = request.sampling.grammar
    if grammar is None:
        return None
    if grammars is None:
        raise RequestRejected("this engine was built without a vocabulary, so it cannot follow grammars", "grammar")
    return grammars.start(grammar, stop_ids)


def _check_chunks(request: Request, chunks: Chunks, blends: bool) -> None:
    if not blends:
        raise RequestRejected(
            "chunks are not blended here: start the server with engine.blending.enabled=true, or leave them out",
            "chunks",
        )
    if not chunks.spans:
        raise RequestRejected("no chunk is given: leave chunks out", "chunks")
    fault = chunks.check(len(request.prompt))
    if fault is not None:
        raise RequestRejected(fault, "chunks")
    behind, first = chunks.spans[-1][1], request.sampling.prompt_logprobs_from
    if request.sampling.prompt_logprobs is not None and first < behind:
        raise RequestRejected(
            "log-probabilities of a prompt need their tokens computed, and those of chunks are not: ask for those behind the "
            f"last chunk (logprobs_from of at least {behind}), or leave chunks or them out",
            "prompt_logprobs",
        )

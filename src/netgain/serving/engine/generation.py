"""A request as the engine sees it: its tokens, its timeline, and its sequence at the scheduler."""

from collections.abc import Sequence as Tokens

from netgain.ledger.records import BlendCounts, DraftCounts, EngineTrace, KVReuse, StepShare
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Timeline
from netgain.serving.blocks.keys import KeyChain
from netgain.serving.engine.edits import History, needs_history
from netgain.serving.engine.grammar import Constraint
from netgain.serving.engine.logprobs import Scores
from netgain.serving.engine.request import Output, Request, TokenLogprobs
from netgain.serving.engine.sequence import Sequence
from netgain.serving.tiers.blending.joined import added


class Generation:
    """State of one running request; `tokens` are prompt and committed output.

    `history` is None where nothing edits the logits, `constraint` where no grammar does.
    """

    __slots__ = (
        "_prompt_logprobs",
        "_waiting_for",
        "_waiting_since_s",
        "blending",
        "chain",
        "constraint",
        "drafts",
        "finish_reason",
        "first_token_s",
        "history",
        "kv",
        "own_s",
        "request",
        "sequence",
        "stall_s",
        "stop_ids",
        "timeline",
        "tokens",
    )

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        chain: KeyChain,
        stop_ids: frozenset[int],
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.chain = chain
        self.stop_ids = stop_ids
        self.constraint = constraint
        self.tokens: list[int] = list(request.prompt)
        self.history = History(request.sampling, request.prompt, stop_ids) if needs_history(request.sampling) else None
        # the first prompt token has none: nothing stands before it
        unknown = 1 + request.sampling.prompt_logprobs_from  # tokens from the first on that have no law
        asked = request.sampling.prompt_logprobs is not None
        self._prompt_logprobs: list[TokenLogprobs | None] | None = [None] * unknown if asked else None
        self.timeline = Timeline()
        self.drafts = DraftCounts()
        self.blending: BlendCounts | None = None
        self.finish_reason: str | None = None
        self.first_token_s: float | None = None
        self.kv: KVReuse | None = None  # where tiers are asked
        self.own_s: float | None = 0.0
        self.stall_s: float | None = 0.0
        self._waiting_for = Stage.QUEUED
        self._waiting_since_s = request.received_s

    def extend(self, tokens: tuple[int, ...]) -> str | None:
        """`tokens` are committed. Returns why they cannot be (then nothing changes but the grammar)."""
        if self.constraint is not None:
            refusal = self.constraint.extend(tokens)
            if refusal is not None:
                return refusal
        self.tokens.extend(tokens)
        self.chain.extend(tokens)
        if self.history is not None:
            self.history.extend(tokens)
        return None

    def to_score(self, start: int, count: int) -> Tokens[int]:
        """The tokens that really follow the `count` from position `start` on."""
        return self.tokens[start + 1 : start + count + 1]

    def scored(self, scores: Scores) -> None:
        """Log-probabilities of the prompt's next tokens."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(scores.entries())

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """Those of the whole prompt, once they are there, and only once."""
        if self._prompt_logprobs is None or len(self._prompt_logprobs) < len(self.request.prompt):
            return None
        taken, self._prompt_logprobs = tuple(self._prompt_logprobs), None
        return taken

    def wait_until(self, now_s: float) -> None:
        """The wait for a place in the batch, first or after a preemption, ends."""
        self.timeline.add(self._waiting_for, self._waiting_since_s, now_s)

    def preempted(self, now_s: float) -> None:
        """The blocks are gone; until it is admitted again, the request waits for them."""
        self._waiting_for = Stage.PREEMPTED
        self._waiting_since_s = now_s

    def shared(self, share: StepShare) -> None:
        """Add a step's own cost and stall; one step without a cost curve makes the sums unknown."""
        if share.own_s is None or share.stall_s is None or self.own_s is None or self.stall_s is None:
            self.own_s = self.stall_s = None
        else:
            self.own_s += share.own_s
            self.stall_s += share.stall_s

    def blended(self, piece: BlendCounts, start: int) -> None:
        """A piece of the prompt, from the position `start` on, was computed with its chunks."""
        assert self.request.chunks is not None
        anew = start <= self.request.chunks.spans[0][0]  # after a preemption all of it is computed again
        self.blending = added(None if anew else self.blending, piece)

    def output(self, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> Output:
        """What a step committed, for who asked."""
        if self.request.sampling.logprobs is None and self.request.sampling.prompt_logprobs is None:
            return Output(request_id=self.request.id, tokens=tokens)
        return Output(
            request_id=self.request.id,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=self.take_prompt_logprobs(),
        )

    def trace(self) -> EngineTrace:
        """What is known at the end; call before the scheduler finishes the sequence."""
        return EngineTrace(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.sequence.cached_tokens,
            output_tokens=len(self.tokens) - len(self.request.prompt),
            preemptions=self.sequence.preemptions,
            first_token_s=self.first_token_s,
            intervals=tuple(self.timeline.intervals),
            drafts=self.drafts,
            own_s=self.own_s,
            stall_s=self.stall_s,
            kv=self.kv,
            blending=self.blending,
        )

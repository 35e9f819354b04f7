"""One choice on its way to the client: tokens become text, stop strings end it, and its record is put together."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from netgain.ledger.records import DraftCounts, EngineTrace, RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Interval, tile
from netgain.serving.api.prepare import Job
from netgain.serving.api.stop import StopMatcher
from netgain.serving.engine.request import Output
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer


class Piece(NamedTuple):
    """What an output adds: text that is certain, tokens, and whether the answer is complete for the client."""

    text: str
    tokens: int
    finish_reason: str | None


class Choice:
    """Takes the outputs of one job in order. `ended`: complete for the client; `closed`: the engine has let go of it, too
    (after a stop string that takes until it has aborted)."""

    def __init__(self, request_id: str, job: Job, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.request_id = request_id
        self.job = job
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.trace: EngineTrace | None = None
        self.error: str | None = None
        self.closed = False
        self.first_sent_s: float | None = None
        self.last_sent_s: float | None = None
        self.tokens_when_sent = 0
        self.finished_s: float | None = None
        self._tiled: tuple[float, dict[Stage, float]] | None = None  # how far the record has been put together
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: Output) -> Piece:
        """Add an output. Behind a stop string nothing counts any more: neither text nor tokens."""
        if output.finish_reason is not None:
            self.closed = True
            self.trace = output.trace
            self.error = None if self.ended else output.error
        if self.ended:
            return Piece("", 0, None)
        parts: list[str] = []
        # the token that ends an answer is counted, but no part of its text
        shown = len(output.tokens) - (output.finish_reason == "stop")
        for index, token in enumerate(output.tokens):
            self.tokens.append(token)
            if index < shown:
                released = self._stops.feed(self._detokenizer.push((token,)))
                parts.append(released.text)
                if released.stopped:
                    self.finish_reason = "stop"
                    return Piece("".join(parts), index + 1, "stop")
        if output.finish_reason is not None:
            parts.append(self._rest())
            if self.finish_reason is None:
                self.finish_reason = output.finish_reason
        return Piece("".join(parts), len(output.tokens), self.finish_reason)

    def lose(self, error: str) -> None:
        """The request ended without a last output."""
        self.closed = True
        if not self.ended:
            self.error = error
            self.finish_reason = "error"

    def give_up(self) -> None:
        """The client is gone."""
        if not self.ended:
            self.finish_reason = "abort"

    def record(
        self,
        *,
        answer_id: str,
        model: str,
        received_s: float,
        until_s: float,
        around: Iterable[Interval],
        ids: bool,
    ) -> RequestRecord:
        """The record up to `until_s`; `around` are the intervals of the HTTP request that all its choices share."""
        trace = self.trace
        engine = () if trace is None else trace.intervals
        intervals = (*around, *engine)
        first_s = self.first_sent_s
        if first_s is None and trace is not None:
            first_s = trace.first_token_s
        return RequestRecord(
            request_id=answer_id,
            choice=self.job.index,
            model=model,
            received_s=received_s,
            first_token_s=first_s,
            finished_s=until_s,
            finish_reason=self.finish_reason or "abort",
            prompt_tokens=len(self.job.prompt),
            cached_tokens=0 if trace is None else trace.cached_tokens,
            output_tokens=len(self.tokens),
            preemptions=0 if trace is None else trace.preemptions,
            stages=self._stages(intervals, received_s, until_s),
            ttft_stages=None if first_s is None else _tile(intervals, received_s, first_s),
            drafts=DraftCounts() if trace is None else trace.drafts,
            own_s=None if trace is None else trace.own_s,
            stall_s=None if trace is None else trace.stall_s,
            prompt_ids=self.job.prompt if ids else None,
            output_ids=tuple(self.tokens) if ids else None,
            error=self.error,
        )

    def _stages(self, intervals: Sequence[Interval], received_s: float, until_s: float) -> dict[Stage, float]:
        """Tile up to `until_s`; the second record of a choice only adds what came after the first."""
        since_s, before = self._tiled or (received_s, {})
        totals = dict(before)
        for stage, seconds in _tile(intervals, since_s, until_s).items():
            totals[stage] = totals.get(stage, 0.0) + seconds
        self._tiled = until_s, totals
        return totals

    def _rest(self) -> str:
        """What was held back at the end of the text: a cut character becomes a replacement mark, and may complete a stop."""
        released = self._stops.feed(self._detokenizer.finish())
        if released.stopped:
            self.finish_reason = "stop"
            return released.text
        return released.text + self._stops.finish()


def _tile(intervals: Sequence[Interval], start_s: float, end_s: float) -> dict[Stage, float]:
    """`tile`, looking only at intervals that matter: a long answer has thousands, its first token a handful."""
    return tile((i for i in intervals if i.start_s < end_s and i.end_s > start_s), start_s, end_s)

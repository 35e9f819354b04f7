"""One choice on its way to the client: tokens become text, text becomes content, reasoning and tool calls, and its record is
put together."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from netgain.ledger.interval import Interval
from netgain.ledger.records import DraftCounts, EngineTrace, RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import tile
from netgain.serving.api.logprobs import Entry, prompt_entries
from netgain.serving.api.parsing.parts import Content, OutputParser, Part, Reasoning, ToolCallArguments, ToolCallStart
from netgain.serving.api.prepare import Job, Presentation
from netgain.serving.api.text_flow import Flowed, TextFlow
from netgain.serving.engine.request import Output, TokenLogprobs
from netgain.serving.model.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What an output adds: parts and log-probabilities that are certain, and why the answer ends, if it does."""

    parts: tuple[Part, ...] = ()
    entries: tuple[Entry, ...] = ()
    finish_reason: str | None = None


_NOTHING = Piece()


class Choice:
    """Takes the outputs of one job in order. `ended`: complete for the client; `closed`: the engine has let go of it, too
    (after a stop string that takes until it has aborted)."""

    def __init__(self, request_id: str, job: Job, tokenizer: Tokenizer, shown: Presentation) -> None:
        self.request_id = request_id
        self.job = job
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.called_tools = False
        self.reasoning_tokens: int | None = 0 if shown.reads_reasoning else None
        self.prompt_laws: tuple[TokenLogprobs | None, ...] | None = None
        self.trace: EngineTrace | None = None
        self.error: str | None = None
        self.closed = False
        self.first_sent_s: float | None = None
        self.last_sent_s: float | None = None
        self.tokens_when_sent = 0
        self.finished_s: float | None = None
        self._tiled: tuple[float, dict[Stage, float]] | None = None  # how far the record has been put together
        self._tokenizer = tokenizer
        self._shown = shown
        self._echo = job.echo
        self._parser: OutputParser | None = None if shown.new_parser is None else shown.new_parser()
        self._flow = TextFlow(
            tokenizer,
            shown.stops,
            include_stop=shown.include_stop,
            min_tokens=job.sampling.min_tokens,
            keep=shown.keep,
            continues=shown.continues,
            entries=shown.top is not None,
            offset=len(job.echo or ""),
        )

        self._plain = self._flow.is_plain and self._parser is None and self._echo is None

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def reason_for_client(self) -> str:
        """OpenAI's word for why the answer ended."""
        if self.finish_reason == "stop" and self.called_tools:
            return "tool_calls"
        return self.finish_reason or "stop"

    def take(self, output: Output) -> Piece:
        """Add an output. Behind a stop string nothing counts any more: neither text nor tokens."""
        if self._plain and not self.ended and output.finish_reason is None and output.prompt_logprobs is None:
            self.tokens += output.tokens
            text = self._flow.plain(output.tokens)
            return Piece((Content(text),)) if text else _NOTHING
        if output.finish_reason is not None:
            self.closed = True
            self.trace = output.trace
            self.error = None if self.ended else output.error
        if self.ended:
            return _NOTHING
        parts: list[Part] = []
        entries: list[Entry] = []
        if output.prompt_logprobs is not None:
            self.prompt_laws = output.prompt_logprobs
        self._echo_prompt(parts, entries)
        # the token that ends an answer is counted, but no part of its text
        hidden = len(output.tokens) - 1 if output.finish_reason == "stop" and not self._shown.include_stop else None
        for index, token in enumerate(output.tokens):
            self.tokens.append(token)
            law = output.logprobs[index] if output.logprobs else None
            flowed = self._flow.push(token, law, shown=index != hidden)
            self._add(flowed, parts, entries)
            if flowed.stop is not None:
                break
        else:
            if output.finish_reason is not None:
                self._add(self._flow.finish(), parts, entries)
                if self.finish_reason is None:
                    self._ended_by(output)
        if self.ended and self._parser is not None:
            self._keep(self._parser.finish(), parts)
        return Piece(tuple(parts), tuple(entries), self.reason_for_client if self.ended else None)

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
        tenant: str | None = None,
        key_id: str | None = None,
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
            cached_tokens=None if trace is None else trace.cached_tokens,
            output_tokens=len(self.tokens),
            preemptions=None if trace is None else trace.preemptions,
            stages=self._stages(intervals, received_s, until_s),
            ttft_stages=None if first_s is None else _tile(intervals, received_s, first_s),
            drafts=DraftCounts() if trace is None else trace.drafts,
            own_s=None if trace is None else trace.own_s,
            stall_s=None if trace is None else trace.stall_s,
            prompt_ids=self.job.prompt if ids else None,
            output_ids=tuple(self.tokens) if ids else None,
            error=self.error,
            tenant=tenant,
            key_id=key_id,
            kv=None if trace is None else trace.kv,
            blending=None if trace is None else trace.blending,
        )

    def _stages(self, intervals: Sequence[Interval], received_s: float, until_s: float) -> dict[Stage, float]:
        """Tile up to `until_s`; the second record of a choice only adds what came after the first."""
        since_s, before = self._tiled or (received_s, {})
        totals = dict(before)
        for stage, seconds in _tile(intervals, since_s, until_s).items():
            totals[stage] = totals.get(stage, 0.0) + seconds
        self._tiled = until_s, totals
        return _in_order(totals)

    def _echo_prompt(self, parts: list[Part], entries: list[Entry]) -> None:
        """The prompt stands before the answer, with its log-probabilities where the answer has some."""
        if self._echo is None or (self._shown.top is not None and self.prompt_laws is None):
            return
        parts.append(Content(self._echo))
        if self._shown.top is not None and self.prompt_laws is not None:
            entries += prompt_entries(self.job.prompt, self.prompt_laws, self._tokenizer)
        self._echo = None

    def _add(self, flowed: Flowed, parts: list[Part], entries: list[Entry]) -> None:
        entries += flowed.entries
        if flowed.stop is not None:
            self.finish_reason = "stop"
            self.stop_reason = flowed.stop
        if not flowed.text:
            return
        if self._parser is None:
            parts.append(Content(flowed.text))
        else:
            self._keep(self._parser.feed(flowed.text), parts)

    def _keep(self, found: Iterable[Part], parts: list[Part]) -> None:
        for part in found:
            match part:
                case Reasoning():
                    self.reasoning_tokens = len(self.tokens)
                case ToolCallStart() | ToolCallArguments():
                    if part.index and self._shown.one_call:
                        continue
                    self.called_tools = True
            parts.append(part)

    def _ended_by(self, output: Output) -> None:
        self.finish_reason = output.finish_reason
        if output.finish_reason == "stop" and output.tokens[-1] in self.job.sampling.stop_token_ids:
            self.stop_reason = output.tokens[-1]


def _tile(intervals: Sequence[Interval], start_s: float, end_s: float) -> dict[Stage, float]:
    """`tile`, looking only at intervals that matter: a long answer has thousands, its first token a handful."""
    return _in_order(tile((i for i in intervals if i.start_s < end_s and i.end_s > start_s), start_s, end_s))


def _in_order(seconds: dict[Stage, float]) -> dict[Stage, float]:
    """The stages as their list has them: roughly the order in which a request meets them."""
    return {stage: seconds[stage] for stage in Stage if stage in seconds}

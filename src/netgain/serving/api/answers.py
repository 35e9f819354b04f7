"""The two ways in which an answer leaves: as a stream of events, or whole when it is complete."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import UNSET

from netgain.ledger.prometheus import Exporter
from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Timeline
from netgain.serving.api.choice import Choice, Piece
from netgain.serving.api.frame import Frame, event
from netgain.serving.api.parsing.parts import Content
from netgain.serving.api.protocol import StreamOptions
from netgain.serving.api.sender import Sender
from netgain.serving.api.shapes import Form
from netgain.serving.api.wording import Collected, Wording, usage_over, usage_so_far

Records = Callable[[], tuple[RequestRecord, ...]]

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """Takes the pieces of all choices in order, and is finished when every choice has ended."""

    def add(self, choice: Choice, piece: Piece, since_s: float) -> None:
        """`piece` is what an output adds that was committed at `since_s`."""
        ...

    async def pass_on(self) -> None:
        """No more pieces have come for now: send what can be sent."""
        ...

    def pass_on_at_once(self) -> bool:
        """The same without waiting for anything; False where something is left for `pass_on`."""
        ...

    async def finish(self, choices: Sequence[Choice], records: Records) -> None:
        """Send the rest, with the `records` for the client (none: they were not asked for)."""
        ...


class Streamed:
    """Every piece becomes events; those that have come together leave with one write."""

    def __init__(
        self, sender: Sender, form: Form, wording: Wording, options: StreamOptions, exporter: Exporter
    ) -> None:
        self._sender = sender
        self._form = form
        self._wording = wording
        self._options = options
        self._exporter = exporter
        self._frames: dict[int, Frame] = {}  # by choice, once it has been opened
        self._events: list[bytes] = []
        self._since_s: float | None = None  # when the first piece came that has not been passed on
        self._spoke: list[Choice] = []
        self._ended: list[Choice] = []

    def add(self, choice: Choice, piece: Piece, since_s: float) -> None:
        if self._since_s is None:
            self._since_s = since_s
        counts = self._options.continuous_usage_stats
        frame = self._frames.get(choice.job.index)
        if frame is None:
            frame = self._frames[choice.job.index] = self._open(choice)
        parts, entries, reason = piece
        if reason is None and not entries and len(parts) == 1 and type(parts[0]) is Content:  # nearly always
            self._events.append(frame.event(parts[0].text, usage_so_far(choice) if counts else None))
            self._spoke.append(choice)
            return
        chunks = self._wording.chunks(choice, piece, even_empty=counts)
        if chunks:
            usage = usage_over((choice,)) if counts else None
            self._events += [event(self._form.answer((chunk,), usage, chunk=True)) for chunk in chunks]
            self._spoke.append(choice)
        if reason is not None:
            self._ended.append(choice)

    async def pass_on(self) -> None:
        if self.pass_on_at_once():
            return
        since_s, sender = self._since_s, self._sender
        assert since_s is not None
        if not sender.started:
            sender.worked(since_s)  # else the head would hide how long the first tokens took to become text
            await sender.start(200, {**_STREAM_HEADERS, "x-request-id": self._form.id})
        if self._events:
            await sender.body(b"".join(self._events), since_s)
        self._passed_on()

    def pass_on_at_once(self) -> bool:
        if self._since_s is None:
            return True
        if not self._sender.started:
            return False
        if self._events and not self._sender.body_at_once(b"".join(self._events), self._since_s):
            return False
        self._passed_on()
        return True

    def _passed_on(self) -> None:
        now_s = self._sender.free_s
        self._since_s = None
        self._events.clear()
        for choice in self._spoke:
            self._note_sent(choice, now_s)
        self._spoke.clear()
        for choice in self._ended:
            choice.finished_s = now_s
        self._ended.clear()

    async def finish(self, choices: Sequence[Choice], records: Records) -> None:
        sender = self._sender
        await sender.flush()
        since_s = time.monotonic()
        told = records()
        last = b""
        if self._options.include_usage or told:
            usage = usage_over(tuple(choices)) if self._options.include_usage else None
            last = event(self._form.answer((), usage, told, chunk=True))
        await sender.body(last + _DONE, since_s)
        await sender.flush()
        max(choices, key=lambda choice: choice.finished_s or 0.0).finished_s = sender.free_s
        await sender.finish()

    def _open(self, choice: Choice) -> Frame:
        """Say what stands before the choice's text, and prepare the events of its pieces."""
        counts = self._options.continuous_usage_stats
        if (opening := self._wording.opening(choice)) is not None:
            usage = usage_over((choice,), 0) if counts else None
            self._events.append(event(self._form.answer((opening,), usage, chunk=True)))
        usage = usage_over((choice,), 0) if counts else None

        def sample(text: str) -> bytes:
            (chunk,) = self._wording.chunks(choice, Piece((Content(text),)), even_empty=counts)
            return event(self._form.answer((chunk,), usage, chunk=True))

        return Frame(sample, usage)

    def _note_sent(self, choice: Choice, now_s: float) -> None:
        count = len(choice.tokens)
        if count == choice.tokens_when_sent:
            return
        if choice.first_sent_s is None:
            choice.first_sent_s = now_s
        elif choice.last_sent_s is not None:
            self._exporter.gap(now_s - choice.last_sent_s, count - choice.tokens_when_sent)
        choice.last_sent_s, choice.tokens_when_sent = now_s, count


class Whole:
    """Nothing is sent before the end."""

    def __init__(self, sender: Sender, form: Form, wording: Wording, timeline: Timeline) -> None:
        self._sender = sender
        self._form = form
        self._wording = wording
        self._timeline = timeline
        self._collected: dict[str, Collected] = {}

    def add(self, choice: Choice, piece: Piece, since_s: float) -> None:
        self._collected.setdefault(choice.request_id, Collected([], [])).add(piece)
        self._sender.worked(since_s)

    async def pass_on(self) -> None:
        """Waits for the end."""

    def pass_on_at_once(self) -> bool:
        return True

    async def finish(self, choices: Sequence[Choice], records: Records) -> None:
        sender = self._sender
        # a choice that ended early has waited for the whole answer to be put into words
        since_s = min(choice.finished_s or sender.free_s for choice in choices)
        self._timeline.add(Stage.RESPOND, since_s, time.monotonic())
        body = self._form.answer(
            tuple(self._wording.whole(choice, self._collected[choice.request_id]) for choice in choices),
            usage_over(tuple(choices)),
            records(),
            chunk=False,
            prompt_logprobs=self._wording.prompt_logprobs(choices[0]) if self._form.chat else UNSET,
        )
        await sender.start(
            200,
            {"content-type": "application/json", "content-length": str(len(body)), "x-request-id": self._form.id},
        )
        await sender.body(body, sender.free_s)
        await sender.flush()
        for choice in choices:
            choice.finished_s = sender.free_s
        await sender.finish()

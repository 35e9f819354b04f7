"""One HTTP request that generates: its jobs go to the fleet, what comes back becomes a stream or a whole answer, and every
choice leaves a record, however it ended."""

import asyncio
import contextlib
import time
import uuid

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from netgain.errors import NetgainError, Overloaded, RequestRejected
from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import Timeline
from netgain.serving.api.answers import Answer, Streamed, Whole
from netgain.serving.api.choice import Choice
from netgain.serving.api.connection import body_at_once
from netgain.serving.api.doorstep import send_behind_the_head
from netgain.serving.api.errors import ApiError, to_api_error
from netgain.serving.api.frame import event as stream_event
from netgain.serving.api.inbox import Inbox
from netgain.serving.api.metrics import Metrics
from netgain.serving.api.prepare import Prepared
from netgain.serving.api.quota import Admission
from netgain.serving.api.sender import Sender
from netgain.serving.api.served import ServedModel
from netgain.serving.api.shapes import Form
from netgain.serving.api.traced import traced_request
from netgain.serving.api.wording import Wording, usage_over
from netgain.serving.engine.request import Request
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.fleet.reply import Delivery, Event, Ticket
from netgain.wording import count

_ABORT_TIMEOUT_S = 5.0  # how long records of given-up choices wait for the engine's last word


class Exchange(Response):
    """Answers one prepared request. `timeline` already holds what was measured since `received_s`, up to the hand-off."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        served: ServedModel,
        fleet: Fleet,
        metrics: Metrics,
        timeline: Timeline,
        received_s: float,
        admission: Admission,
        prepared_since_s: float,
        timeout_s: float | None,
    ) -> None:
        super().__init__()
        self._prepared = prepared
        self._served = served
        self._fleet = fleet
        self._metrics = metrics
        self._timeline = timeline
        self._received_s = received_s
        self._admission = admission
        self._prepared_since_s = prepared_since_s
        self._timeout_s = timeout_s
        kind = "chatcmpl" if prepared.chat else "cmpl"
        self._form = Form(
            id=f"{kind}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=served.name,
            fingerprint=served.fingerprint,
            chat=prepared.chat,
        )
        self._wording = Wording(prepared.chat, prepared.shown, served.tokenizer)
        self._choices = {
            choice.request_id: choice
            for choice in (
                Choice(f"{self._form.id}-{job.index}", job, served.tokenizer, prepared.shown) for job in prepared.jobs
            )
        }
        self._tickets: list[Ticket] = []
        self._open = set(self._choices)  # the engine has not let go of these
        self._inbox: Inbox[Event | None] = Inbox()  # None: the client is gone
        self._left = False
        self._gap: tuple[float, float] | None = None  # before the newest step
        self._refusal: NetgainError | None = None
        self._failure: NetgainError | None = None  # whatever ended the request badly, refusals included

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it. Raises NetgainError when nothing was sent yet; later failures become an event of the stream."""
        sender = Sender(send, send_behind_the_head(scope), body_at_once(scope), self._timeline)
        hangup = asyncio.create_task(self._watch_for_hangup(receive))
        try:
            self._submit()
            sender.free_s = time.monotonic()
            answer = self._answer(sender)
            if await self._follow(answer):
                await answer.finish(tuple(self._choices.values()), self._records_for_client)
        except NetgainError as error:
            self._failure = error
            await self._give_up()
            if not sender.started:
                raise
            await _send_failure(sender, error)
        finally:
            hangup.cancel()
            for ticket in self._tickets:
                ticket.abort()
            self._write_records(scope)
            self._admission.settle(self._tokens_used())

    def _submit(self) -> None:
        now_s = time.monotonic()
        self._timeline.add(Stage.TOKENISE, self._prepared_since_s, now_s)
        for choice in self._choices.values():
            request = Request(
                id=choice.request_id,
                prompt=choice.job.prompt,
                sampling=choice.job.sampling,
                choice=choice.job.choice,
                salt=self._prepared.salt,
                speculate=self._prepared.netgain.speculate,
                max_drafts=self._prepared.netgain.max_drafts,
                received_s=now_s,
                priority=self._prepared.priority,
                pin_s=self._prepared.netgain.pin_s or 0.0,
                from_tiers=self._prepared.netgain.from_tiers,
                deadline_s=None if self._timeout_s is None else self._received_s + self._timeout_s,
                chunks=choice.job.chunks,
            )
            self._tickets.append(self._fleet.submit(request, self._inbox.put))

    def _answer(self, sender: Sender) -> Answer:
        if self._prepared.stream:
            exporter, options = self._metrics.exporter, self._prepared.stream_options
            return Streamed(sender, self._form, self._wording, options, exporter)
        return Whole(sender, self._form, self._wording, self._timeline)

    async def _follow(self, answer: Answer) -> bool:
        """Take events until every choice is over. Returns False when the client left; raises what ended a choice badly."""

        def at_once() -> bool:
            return self._take_all(answer) and answer.pass_on_at_once()

        goes_on = True
        while goes_on:
            try:
                await self._inbox.wait(at_once)
                goes_on = self._take_all(answer)
            except Exception:
                await answer.pass_on()  # before the failure is told
                raise
            await answer.pass_on()
        if self._left:
            await self._give_up()
        return not self._left

    def _take_all(self, answer: Answer) -> bool:
        """Take what has come. Returns whether more is to come: the client is there, and a choice is not over."""
        events = self._inbox.items
        while events and not self._left:
            event = events.popleft()
            if event is None:
                self._left = True
            else:
                self._take(event, answer)
        return not self._left and bool(self._open)

    def _take(self, event: Event, answer: Answer) -> None:
        """Add what an event brings to the answer; raises what ended its choice badly."""
        if not isinstance(event, Delivery):
            choice = self._choices[event.request_id]
            complete = choice.ended  # a stop string has ended it for the client
            self._last_words(event)
            if complete:
                return
            self._refusal = event.error
            raise self._in_the_clients_words(event.error)
        output, gap = event.output, event.gap
        if gap is not None and gap != self._gap:
            # what the step loop does between steps is passing tokens on
            self._gap = gap
            self._timeline.add(Stage.RESPOND, *gap)
        choice = self._choices[output.request_id]
        ended_before = choice.ended
        piece = choice.take(output)
        if choice.closed:
            self._open.discard(choice.request_id)
        if ended_before:
            return
        if choice.ended:
            if choice.finish_reason == "error":
                raise ApiError(500, f"generation failed: {choice.error}")
            if choice.finish_reason == "deadline":
                raise self._too_late(choice)
            choice.finished_s = time.monotonic()
            if not choice.closed:  # a stop string: the engine does not know yet
                next(ticket for ticket in self._tickets if ticket.request_id == choice.request_id).abort()
        answer.add(choice, piece, event.ended_s)

    async def _give_up(self) -> None:
        """End what still runs, and wait for the engine's last words about it, so that the records are whole."""
        since_s = time.monotonic()
        for ticket in self._tickets:
            ticket.abort()
        submitted = {ticket.request_id for ticket in self._tickets}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                while self._open & submitted:
                    await self._inbox.wait()
                    if (event := self._inbox.items.popleft()) is not None:
                        self._last_words(event)
        for choice in self._choices.values():
            choice.give_up()
        self._timeline.add(Stage.RESPOND, since_s, time.monotonic())

    def _last_words(self, event: Event) -> None:
        """What an event says for the record alone."""
        if isinstance(event, Delivery):
            choice = self._choices[event.output.request_id]
            choice.take(event.output)
        else:
            choice = self._choices[event.request_id]
            choice.lose(str(event.error))
        if choice.closed:
            self._open.discard(choice.request_id)

    def _write_records(self, scope: Scope) -> None:
        """One record for every choice that the engine took on, and a trace of the whole."""
        now_s = time.monotonic()
        records: list[RequestRecord] = []
        if self._tickets and not isinstance(self._refusal, RequestRejected | Overloaded):
            for choice in self._choices.values():
                records.append(self._record(choice, choice.finished_s or now_s, self._prepared.netgain.tokens))
                self._metrics.collector.request(records[-1])
        if self._metrics.tracing is not None:
            choices = tuple(self._choices.values())
            self._metrics.tracing.take(
                lambda: traced_request(
                    scope,
                    self._prepared,
                    self._form,
                    choices,
                    records,
                    usage_over(choices),
                    self._timeline,
                    self._received_s,
                    self._failure,
                )
            )

    def _tokens_used(self) -> int:
        """What the request is charged: nothing when the engine did not take it."""
        if isinstance(self._refusal, RequestRejected | Overloaded) or not self._tickets:
            return 0
        return usage_over(tuple(self._choices.values())).total_tokens

    def _records_for_client(self) -> tuple[RequestRecord, ...]:
        """The records as far as they can be known before they are sent themselves, where they were asked for."""
        if not self._prepared.netgain.record:
            return ()
        now_s = time.monotonic()
        return tuple(self._record(choice, now_s, self._prepared.netgain.tokens) for choice in self._choices.values())

    def _record(self, choice: Choice, until_s: float, ids: bool) -> RequestRecord:
        return choice.record(
            answer_id=self._form.id,
            model=self._served.name,
            received_s=self._received_s,
            until_s=until_s,
            around=self._timeline.intervals,
            ids=ids,
            tenant=self._admission.identity.tenant,
            key_id=self._admission.identity.key_id,
        )

    def _too_late(self, choice: Choice) -> ApiError:
        return ApiError(
            408,  # the limit is the client's own
            f"the request was not finished within its {self._timeout_s:g} s: {count(len(choice.tokens), 'token')} made so far",
            code="deadline_exceeded",
            headers={"x-should-retry": "false"},  # OpenAI's clients would try again, and again run out of time
        )

    def _in_the_clients_words(self, error: NetgainError) -> NetgainError:
        """A grammar came from the field that asked for it."""
        if isinstance(error, RequestRejected) and error.parameter == "grammar" and self._prepared.structure is not None:
            return RequestRejected(f"{self._prepared.structure}: {error}", self._prepared.structure)
        return error

    async def _watch_for_hangup(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.put(None)


async def _send_failure(sender: Sender, error: NetgainError) -> None:
    """The stream's last event says what happened; no [DONE] follows, so that nobody takes the answer for complete."""
    await sender.body(stream_event(to_api_error(error).body), time.monotonic())
    await sender.finish()

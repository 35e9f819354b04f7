"""Exchanges with a medium: so many at once, each bounded from when it begins, none while the breaker is open. Whoever waits
for a place is not slow yet, and a large transfer may take longer than a small one: neither says that the medium is broken."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.breaker import Breaker
from netgain.serving.tiers.medium import Fault, FaultKind

T = TypeVar("T")
_log = logging.getLogger(__name__)
_TICK_S = 1e-9  # below which clocks do not differ
_FAULTS_OF_THE_MEDIUM = (FaultKind.TIMEOUT, FaultKind.UNREACHABLE, FaultKind.ERROR)


class Exchanges:
    """Of one tier, `at_once` transfers and as many questions. Called from one event loop.

    An exchange is bounded by `timeout_s`, and by the time that everything under way takes at `slowest_bytes_per_s`, or at half
    of what `link` says where that is slower. `ping` is the probe of a broken medium.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        breaker: Breaker,
        ping: Callable[[], Awaitable[None]],
        link: Callable[[], LinkFit | None],
        *,
        timeout_s: float,
        at_once: int,
        slowest_bytes_per_s: float,
    ) -> None:
        self.breaker = breaker
        self._name, self._clock = name, clock
        self._ping, self._link = ping, link
        self._timeout_s, self._slowest = timeout_s, slowest_bytes_per_s
        self._transfers, self._questions = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
        self._begun_bytes = self._ended_bytes = 0
        self._probe: asyncio.Task[None] | None = None
        self._said: set[str] = set()

    @property
    def usable(self) -> bool:
        """Whether the medium would be asked at all; starts the probe of a broken one that is due."""
        self._start_probe()
        return self.breaker.allows()

    async def transfer(self, call: Callable[[], Awaitable[T]], size: int, until_s: float | None = None) -> T:
        """The call's result, which moves about `size` bytes. Raises Fault: the breaker is open, the call failed, or the time, the
        exchange's or the caller's, is up."""
        return await self._exchange(call, size, until_s, self._transfers)

    async def ask(self, call: Callable[[], Awaitable[T]], until_s: float | None = None) -> T:
        """As `transfer`, of what moves next to nothing: it does not wait behind transfers."""
        return await self._exchange(call, 0, until_s, self._questions)

    async def read_on(self, call: Callable[[], Awaitable[T]]) -> T:
        """As `ask`, of a part of something long that nobody's request waits for: its failure is not held against the medium."""
        self._check()
        return await self._within(call(), 0, None)

    def say(self, about: str, message: str) -> None:
        """Log once: what repeats is in the counters."""
        if about not in self._said:
            self._said.add(about)
            _log.warning("tier %s %s", self._name, message)

    async def close(self) -> None:
        """May be called twice."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait({self._probe})
            self._probe = None

    async def _exchange(
        self, call: Callable[[], Awaitable[T]], size: int, until_s: float | None, places: asyncio.Semaphore
    ) -> T:
        self._check()
        await self._enter(places, until_s)
        try:
            self._check()  # it may have opened meanwhile
            result = await self._within(call(), size, until_s)
        except Fault as fault:
            if fault.kind in _FAULTS_OF_THE_MEDIUM:
                self.breaker.failed(self._clock.now())
                self.say(fault.kind, f"failed and is left alone until a probe finds it well: {fault}")
            raise
        finally:
            places.release()
        self.breaker.succeeded()
        return result

    def _check(self) -> None:
        if not self.usable:
            raise Fault(FaultKind.BREAKER, "not tried: the medium failed lately")

    async def _enter(self, places: asyncio.Semaphore, until_s: float | None) -> None:
        if not places.locked():
            await places.acquire()
            return
        turn: asyncio.Task[bool] = asyncio.ensure_future(places.acquire())
        left_s = float("inf") if until_s is None else until_s - self._clock.now()
        alarm = None if until_s is None else asyncio.ensure_future(self._clock.sleep(left_s))
        try:
            await asyncio.wait({turn} if alarm is None else {turn, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise Fault(FaultKind.ABANDONED, f"no turn within {left_s:.3g} s")
        except BaseException:
            if not turn.cancel():  # it has its place already
                places.release()
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    async def _within(self, call: "Awaitable[T]", size: int, until_s: float | None) -> T:
        """The result of a call that begins now."""
        began_s, before = self._clock.now(), self._ended_bytes
        self._begun_bytes += size
        task = asyncio.ensure_future(call)
        alarm: asyncio.Future[None] | None = None
        try:
            while True:
                # a link that is shared fairly has moved no more than what was under way since this began
                due_s = began_s + self._timeout_s + (self._begun_bytes - before) / self._rate()
                kind = FaultKind.TIMEOUT
                if until_s is not None and until_s < due_s:
                    due_s, kind = until_s, FaultKind.ABANDONED
                left_s = due_s - self._clock.now()
                if alarm is not None and left_s <= _TICK_S:
                    raise Fault(kind, f"no answer within {due_s - began_s:.3g} s")
                alarm = asyncio.ensure_future(self._clock.sleep(left_s))
                await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
        except (Fault, asyncio.CancelledError):
            raise
        except Exception as error:
            _log.exception("tier %s: its medium raised what it may not", self._name)
            raise Fault(FaultKind.ERROR, f"{type(error).__name__}: {error}") from error
        finally:
            self._ended_bytes += size
            if alarm is not None:
                alarm.cancel()
            if not task.done():
                task.cancel()
                task.add_done_callback(_forget)

    def _rate(self) -> float:
        link = self._link()
        return self._slowest if link is None or link.bytes_per_s is None else min(self._slowest, link.bytes_per_s / 2)

    def _start_probe(self) -> None:
        if self.breaker.take_probe(self._clock.now()):
            self._probe = asyncio.ensure_future(self._try())

    async def _try(self) -> None:
        try:
            await self._within(self._ping(), 0, None)
        except Fault:
            self.breaker.probed(False, self._clock.now())
        else:
            self.breaker.probed(True, self._clock.now())
            _log.warning("tier %s answers again and is used", self._name)
            self._said -= set(_FAULTS_OF_THE_MEDIUM)


def _forget(task: "asyncio.Future[T]") -> None:
    """Take the outcome of a call that nobody waits for any more."""
    if not task.cancelled():
        task.exception()

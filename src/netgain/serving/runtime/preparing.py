"""Requests on their way into the engine: a grammar that is not compiled yet is compiled on a thread while the loop goes on."""

import asyncio
from collections.abc import Callable

from netgain.errors import Overloaded, RequestRejected
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request
from netgain.serving.runtime.messages import Refused

MAX_PREPARING = 64


class Preparing:
    """Submits at once what needs no preparation. What does is `ready` later, and submitted by `hand_over` between two steps;
    an abort in the meantime follows its request into the engine, so that it is answered like any other.

    `refuse` tells the fleet, `wake` the loop that there is something to hand over.
    """

    def __init__(self, refuse: Callable[[Refused], None], wake: Callable[[], None]) -> None:
        self.ready: list[Request] = []
        self._refuse = refuse
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._aborted: set[str] = set()

    def submit(self, engine: Engine, request: Request) -> None:
        if not engine.must_prepare(request):
            self._submit(engine, request)
        elif request.id in self._tasks:
            self._refuse(
                Refused(request.id, f"a request with id {request.id!r} is there already", "id", overloaded=False)
            )
        elif len(self._tasks) >= MAX_PREPARING:
            message = f"{len(self._tasks)} requests wait for their grammar to be compiled already: retry later"
            self._refuse(Refused(request.id, message, None, overloaded=True))
        else:
            self._tasks[request.id] = asyncio.create_task(self._prepare(engine, request))

    def abort(self, engine: Engine, request_id: str) -> None:
        if request_id in self._tasks:
            self._aborted.add(request_id)
        else:
            engine.abort(request_id)

    def hand_over(self, engine: Engine) -> None:
        """Submit what is ready; called between two steps."""
        ready, self.ready = self.ready, []
        for request in ready:
            del self._tasks[request.id]
            self._submit(engine, request)
            if request.id in self._aborted:
                self._aborted.discard(request.id)
                engine.abort(request.id)

    async def _prepare(self, engine: Engine, request: Request) -> None:
        try:
            await engine.prepare(request)
        except RequestRejected:
            self.ready.append(request)  # submitting refuses it, by the same reason
        except Exception as error:  # the library failed: this request's loss, and nobody else's
            del self._tasks[request.id]
            self._aborted.discard(request.id)
            self._refuse(Refused(request.id, f"the grammar cannot be compiled: {error!r}", "grammar", overloaded=False))
        else:
            self.ready.append(request)
        self._wake()

    def _submit(self, engine: Engine, request: Request) -> None:
        try:
            engine.submit(request)
        except RequestRejected as refusal:
            self._refuse(Refused(request.id, str(refusal), refusal.parameter, overloaded=False))
        except Overloaded as refusal:
            self._refuse(Refused(request.id, str(refusal), None, overloaded=True))

"""Requests on their way into the engine: a grammar that is not compiled yet is compiled on a thread, and chunks that lie in tiers
are fetched, and a new tenant's key is made, while the loop goes on."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from netgain.errors import Overloaded, RequestRejected
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request
from netgain.serving.runtime.messages import Refused

MAX_PREPARING = 64


class Preparing:
    """Submits at once what needs no preparation. What does is `ready` later, and submitted by `hand_over` between two steps.

    A request that is given up, or whose deadline comes, in the meantime goes into the engine without its grammar, which
    answers it like any other; a compilation that has not begun is then left out, so that nobody waits for it.

    `refuse` tells the fleet, `wake` the loop that there is something to hand over.
    """

    def __init__(self, refuse: Callable[[Refused], None], wake: Callable[[], None]) -> None:
        self.ready: list[Request] = []
        self._refuse = refuse
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._preparing: dict[str, Request] = {}  # those of the tasks

    def submit(self, engine: Engine, request: Request) -> None:
        costly = engine.must_prepare(request)
        if not costly and not engine.lacks_key(request):
            self._submit(engine, request)
        elif request.id in self._tasks:
            self._refuse(
                Refused(request.id, f"a request with id {request.id!r} is there already", "id", overloaded=False)
            )
        elif costly and len(self._tasks) >= MAX_PREPARING:
            message = f"{len(self._tasks)} requests wait for their grammars and chunks already: retry later"
            self._refuse(Refused(request.id, message, None, overloaded=True))
        else:
            self._preparing[request.id] = request
            self._tasks[request.id] = asyncio.create_task(self._prepare(engine, request))

    def abort(self, engine: Engine, request_id: str) -> None:
        if request_id in self._tasks:
            self._tasks.pop(request_id).cancel()
            request = self._preparing.pop(request_id)
            self.ready = [one for one in self.ready if one.id != request_id]
            self._submit(engine, _without_grammar(request))
        engine.abort(request_id)

    def hand_over(self, engine: Engine) -> None:
        """Submit what is ready; called between two steps."""
        ready, self.ready = self.ready, []
        for request in ready:
            del self._tasks[request.id], self._preparing[request.id]
            self._submit(engine, request)

    async def _prepare(self, engine: Engine, request: Request) -> None:
        try:
            async with asyncio.timeout_at(
                request.deadline_s
            ):  # the event loop and requests share the host's monotonic clock
                await engine.prepare(request)
        except RequestRejected:
            self.ready.append(request)  # submitting refuses it, by the same reason
        except TimeoutError:
            self.ready.append(_without_grammar(request))
        except Exception as error:  # the library failed: this request's loss, and nobody else's
            del self._tasks[request.id], self._preparing[request.id]
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


def _without_grammar(request: Request) -> Request:
    """For what ends before it begins."""
    return replace(request, sampling=replace(request.sampling, grammar=None))

"""The outermost layer: stamps the arrival, lets in who may come in, and answers what nothing else did."""

import logging
import time

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from netgain.errors import NetgainError
from netgain.serving.api.auth import ANONYMOUS, Authenticator, Identity
from netgain.serving.api.errors import ApiError, to_api_error
from netgain.serving.api.lifecycle import Lifecycle
from netgain.serving.api.quota import Admission, Quotas
from netgain.serving.api.web_pages import from_a_page

logger = logging.getLogger("netgain.api")

_RECEIVED = "netgain.received_s"
_ADMISSION = "netgain.admission"
_SEND = "netgain.send"
_OPEN = frozenset({"/health", "/health/live", "/health/ready"})
_PATH_SHOWN = 200
_METRICS = "/metrics"
# they touch everybody's requests, or tell how the server is operated
_OPERATORS = frozenset({"/netgain/step-cost", "/netgain/cache/purge", "/netgain/settings"})


def received_s(scope: Scope) -> float:
    """When the request's head had been read (monotonic seconds of the host)."""
    return float(scope[_RECEIVED])


def admission(scope: Scope) -> Admission:
    """Who asks, and the account that pays."""
    found: Admission = scope[_ADMISSION]
    return found


def send_behind_the_head(scope: Scope) -> Send:
    """The server's own send, for the body of an answer: what stands before it looks at the head alone, and costs time with
    every token of a stream."""
    found: Send = scope[_SEND]
    return found


def shown_path(scope: Scope) -> str:
    """The path for the log: as it was sent, so that no client writes lines of its own there, and not all of a long one."""
    sent: bytes = scope["raw_path"]
    return ascii(sent[:_PATH_SHOWN].decode("latin-1"))[1:-1]


def who(scope: Scope) -> str:
    """Tenant and key id for the log; nothing where nobody is asked for a key."""
    found: Admission | None = scope.get(_ADMISSION)
    return "" if found is None or found.identity.tenant is None else f" by {found.identity}"


class Doorstep:
    """Wraps the application. `authenticator` None: everybody is the one anonymous tenant."""

    def __init__(
        self,
        app: ASGIApp,
        lifecycle: Lifecycle,
        quotas: Quotas,
        authenticator: Authenticator | None,
        *,
        open_metrics: bool,
    ) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._quotas = quotas
        self._authenticator = authenticator
        self._open_metrics = open_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_RECEIVED] = time.monotonic()
        scope[_SEND] = send
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            if not started and (told := scope.get(_ADMISSION)) is not None:
                message["headers"] = [*message.get("headers", ()), *told.headers()]
            started = True
            await send(message)

        try:
            await self._let_in(scope, receive, watched)
        except Exception as error:
            answer = to_api_error(error)
            if not isinstance(error, NetgainError):
                logger.exception("%s %s failed", scope["method"], shown_path(scope))
            elif answer.status == 401:
                logger.warning("%s %s refused: %s", scope["method"], shown_path(scope), answer)
            if not started:
                response = Response(answer.body, answer.status, answer.headers, "application/json")
                await response(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path in _OPEN or (path == _METRICS and self._open_metrics):
            await self._app(scope, receive, send)
            return
        with self._lifecycle.request():
            identity = await self._identify(scope)
            if path in _OPERATORS or path == _METRICS:
                if self._authenticator is None and path in _OPERATORS and from_a_page(scope["headers"]):
                    raise ApiError(
                        403,
                        f"{path} does nothing for web pages where there are no API keys, since any page could ask: use netgain "
                        "or curl, or start the server with --api-keys",
                        code="forbidden",
                    )
                if not identity.operator:
                    raise ApiError(
                        403, f"{path} is for operators' keys (netgain keys new --operator)", code="forbidden"
                    )
                await self._app(scope, receive, send)
                return
            if scope["method"] != "POST":
                await self._app(scope, receive, send)
                return
            entered = scope[_ADMISSION] = self._quotas.enter(identity)
            try:
                await self._app(scope, receive, send)
            finally:
                entered.leave()

    async def _identify(self, scope: Scope) -> Identity:
        if self._authenticator is None:
            return ANONYMOUS
        return await self._authenticator.identify(scope["headers"])

"""The HTTP surface: OpenAI's endpoints, health, metrics and the step-cost measurement, over a fleet."""

import asyncio
import functools
import logging
import time
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from netgain.errors import NetgainError
from netgain.ledger.clock import WallClock
from netgain.ledger.prometheus import CONTENT_TYPE
from netgain.ledger.timeline import Timeline
from netgain.serving.api.auth import Authenticator, Identity
from netgain.serving.api.body import Body, read_body
from netgain.serving.api.cache import purge
from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.deadline import timeout_of
from netgain.serving.api.doorstep import Doorstep, admission, received_s, shown_path, who
from netgain.serving.api.errors import ApiError, one_line, to_api_error
from netgain.serving.api.exchange import Exchange
from netgain.serving.api.lifecycle import Lifecycle
from netgain.serving.api.metrics import Metrics
from netgain.serving.api.openapi import document
from netgain.serving.api.prepare import Prepared, prepare
from netgain.serving.api.protocol import CompletionRequest, GenerationRequest
from netgain.serving.api.quota import Quotas
from netgain.serving.api.served import ServedModel
from netgain.serving.api.settings_told import settings_told
from netgain.serving.api.tokenize import detokenize, tokenize
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.runtime.config import ServerConfig

logger = logging.getLogger("netgain.api")

_LARGE_BODY_BYTES = 8 << 10  # longer texts are tokenised beside the event loop
_STEP_COST_BUDGET_S = 3.0
_STEP_COST_BATCH = 16
_ALL_PATHS = "see /openapi.json for what this server offers"
_INSTEAD = {
    "/v1/responses": "the Responses API is not offered, use /v1/chat/completions",
    "/v1/embeddings": "this server generates text and has no embeddings",
    "/v1/messages": "Anthropic's API is not offered, use /v1/chat/completions",
}


def build_app(
    config: ServerConfig,
    fleet: Fleet,
    served: ServedModel,
    metrics: Metrics,
    lifecycle: Lifecycle | None = None,
    authenticator: Authenticator | None = None,
) -> ASGIApp:
    """The ASGI application. Fleet and metrics stay the caller's to close; without an authenticator no key is asked for."""
    lifecycle = lifecycle or Lifecycle()
    app = FastAPI(title="netgain", docs_url=None, redoc_url=None)
    created_s = int(time.time())

    async def body_of(request: Request, timeline: Timeline) -> Body:
        limit_bytes, timeout_s = config.limits.max_body_bytes, config.server.body_timeout_s
        return await read_body(request, limit_bytes, timeout_s, received_s(request.scope), timeline)

    async def generate(request: Request, kind: type[GenerationRequest]) -> Response:
        admitted = admission(request.scope)
        timeline = Timeline()
        body = await body_of(request, timeline)
        if len(body.data) > _LARGE_BODY_BYTES:
            prepared = await asyncio.to_thread(_prepare, body.data, kind, served, config, admitted.identity)
        else:
            prepared = _prepare(body.data, kind, served, config, admitted.identity)
        admitted.reserve(prepared.most_tokens)
        return Exchange(
            prepared,
            served=served,
            fleet=fleet,
            metrics=metrics,
            timeline=timeline,
            received_s=received_s(request.scope),
            admission=admitted,
            prepared_since_s=body.complete_s,
            timeout_s=timeout_of(prepared.timeout_s, request.headers),
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """A chat answer, whole or as a stream."""
        return await generate(request, ChatRequest)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """The continuation of one or several prompts, whole or as a stream."""
        return await generate(request, CompletionRequest)

    @app.post("/tokenize")
    async def tokenize_route(request: Request) -> Response:
        """The tokens of a text or of a conversation, as a completion or chat would read them."""
        body = await body_of(request, Timeline())
        return _json(await asyncio.to_thread(tokenize, body.data, served))

    @app.post("/detokenize")
    async def detokenize_route(request: Request) -> Response:
        """The text of tokens."""
        body = await body_of(request, Timeline())
        return _json(await asyncio.to_thread(detokenize, body.data, served))

    @app.get("/v1/models")
    async def models() -> Response:
        """The one model that is served."""
        return _json({"object": "list", "data": [_card(served, created_s)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """That model again."""
        if name != served.name:
            raise ApiError(404, f"the model {name!r} is not served here", param="model", code="model_not_found")
        return _json(_card(served, created_s))

    @app.get("/health/live")
    async def live() -> Response:
        """200 while this process can answer at all: restart it when this fails."""
        return _json({"status": "live"})

    @app.get("/health")
    @app.get("/health/ready")
    async def health() -> Response:
        """200 while a request would be taken; else 503 with the cause: send requests elsewhere."""
        state = fleet.health()
        replicas = [
            {
                "name": replica.name,
                "state": replica.state,
                "cause": replica.cause,
                "restarts": replica.restarts,
                "pid": replica.pid,
                "in_flight": replica.in_flight,
            }
            for replica in state.replicas
        ]
        if lifecycle.draining:
            error = ApiError(
                503, f"the server is shutting down, {lifecycle.in_flight} requests still run", code="shutting_down"
            )
            return _json({"status": "draining", "error": error.detail, "replicas": replicas}, error)
        if state.ready:
            return _json({"status": "ready", "replicas": replicas})
        error = ApiError(503, f"no engine is ready: {state.cause}")
        return _json({"status": "unavailable", "error": error.detail, "replicas": replicas}, error)

    @app.get("/metrics")
    async def prometheus() -> Response:
        """Prometheus text."""
        return Response(metrics.render(fleet), media_type=CONTENT_TYPE)

    @app.get("/netgain/step-cost")
    async def step_cost(
        budget_s: Annotated[float, Query(gt=0, le=60)] = _STEP_COST_BUDGET_S,
        batch: Annotated[int, Query(ge=1, le=256)] = _STEP_COST_BATCH,
        fresh: bool = False,
    ) -> Response:
        """What a step costs on this engine, for batches of up to `batch` requests: the curve in use, or (where there is none,
        or with fresh=true) one measured now, while no request runs."""
        return Response(await fleet.step_cost(budget_s, batch, fresh), media_type="application/json")

    @app.get("/netgain/settings")
    async def settings() -> Response:
        """Every setting as it is in effect, passwords hidden."""
        return _json(settings_told(config))

    @app.post("/netgain/cache/purge")
    async def purge_cache(
        tenant: str | None = None, everything: Annotated[bool, Query(alias="all")] = False
    ) -> Response:
        """Forget the cached KV of one tenant, or of all: on the device, in memory and in tiers, with the tenant's data key."""
        return _json(await purge(fleet, tenant, everything))

    async def explain(request: Request, error: Exception) -> Response:
        """Any failure before an answer began."""
        answer = _explain(error, request.url.path)
        asked = f"{request.method} {shown_path(request.scope)}{who(request.scope)}"
        if answer.status >= 500:
            logger.error("%s failed: %s", asked, error, exc_info=_unexpected(error))
        elif answer.status not in (401, 429):  # those are for whoever reads the metrics, not for a line each
            logger.warning("%s refused: %s", asked, one_line(str(answer)))
        return _json({"error": answer.detail}, answer)

    async def admit(request: Request, error: Exception) -> Response:
        """A fault of ours; the doorstep logs it."""
        answer = to_api_error(error)
        return _json({"error": answer.detail}, answer)

    app.add_exception_handler(Exception, admit)
    for kind in (NetgainError, ValidationError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, explain)
    app.openapi = functools.cache(lambda: document(app, served, config))  # type: ignore[method-assign]
    return Doorstep(app, lifecycle, Quotas(WallClock()), authenticator, open_metrics=config.auth.metrics == "open")


def _prepare(
    data: bytes, kind: type[GenerationRequest], served: ServedModel, config: ServerConfig, identity: Identity
) -> Prepared:
    request = kind.model_validate_json(data)
    return prepare(request, served, config.limits, config.engine.scheduler.max_waiting, identity)


def _explain(error: Exception, path: str) -> ApiError:
    match error:
        case HTTPException():
            allowed = (error.headers or {}).get("Allow")
            hint = f": {_INSTEAD.get(path, _ALL_PATHS)}" if error.status_code == 404 else ""
            if error.status_code == 405 and allowed:
                hint = f": this path takes {allowed}"
            return ApiError(error.status_code, f"{error.detail}{hint}", headers=error.headers)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return ApiError(400, f"{where}: {first['msg']}", param=where or None)
        case ClientDisconnect():
            return ApiError(400, "the client left before its request was complete")
    return to_api_error(error)


def _unexpected(error: Exception) -> Exception | None:
    """The exception, if a traceback says more than its message."""
    return None if isinstance(error, NetgainError) else error


def _json(content: Any, error: ApiError | None = None) -> Response:
    status, headers = (200, None) if error is None else (error.status, error.headers)
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def _card(served: ServedModel, created_s: int) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": created_s,
        "owned_by": "netgain",
        "max_model_len": served.max_length,
        "netgain": dict(served.info),
    }

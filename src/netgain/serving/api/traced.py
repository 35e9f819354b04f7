"""From an HTTP request that has ended to what tracing takes: its records with their intervals, and what it asked for."""

import importlib.metadata
import time
from collections.abc import Sequence

from starlette.types import Scope

from netgain.errors import NetgainError
from netgain.ledger.otlp import OtlpExport
from netgain.ledger.records import RequestRecord
from netgain.ledger.timeline import Timeline
from netgain.ledger.tracing import TracedChoice, TracedRequest, Tracing
from netgain.serving.api.choice import Choice
from netgain.serving.api.errors import to_api_error
from netgain.serving.api.prepare import Prepared
from netgain.serving.api.shapes import Form, Usage
from netgain.serving.runtime.config import TracingSettings


def start_tracing(settings: TracingSettings) -> Tracing | None:
    """The way to the collector, with its thread; None when no endpoint is set. Raises UsageError."""
    if settings.endpoint is None:
        return None
    export = OtlpExport(
        settings.endpoint,
        settings.protocol,
        sample_ratio=settings.sample_ratio,
        timeout_s=settings.timeout_s,
        resource={
            "service.name": settings.service_name,
            "service.version": importlib.metadata.version("netgain"),
        },
    )
    return Tracing(export, export.close, queue_requests=settings.queue, flush_s=settings.flush_s)


def traced_request(
    scope: Scope,
    prepared: Prepared,
    form: Form,
    choices: Sequence[Choice],
    records: Sequence[RequestRecord],
    usage: Usage,
    around: Timeline,
    received_s: float,
    failure: NetgainError | None,
) -> TracedRequest:
    """`records` are those of `choices` in order, or empty where the engine took nothing on; `around` are the intervals
    that all choices share."""
    sampling = prepared.jobs[0].sampling
    asked: dict[str, str | int | float | bool] = {
        "http.request.method": scope["method"],
        "url.path": scope["path"],
        "gen_ai.request.stream": prepared.stream,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
    }
    if sampling.top_k:
        asked["gen_ai.request.top_k"] = sampling.top_k
    cached = usage.prompt_tokens_details
    error = None if failure is None else to_api_error(failure)
    return TracedRequest(
        request_id=form.id,
        operation="chat" if prepared.chat else "text_completion",
        model=form.model,
        received_s=received_s,
        finished_s=max((record.finished_s for record in records), default=time.monotonic()),
        choices=tuple(
            TracedChoice(record, (*around.intervals, *(() if choice.trace is None else choice.trace.intervals)))
            for choice, record in zip(choices, records, strict=False)
        ),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=None if cached is None else cached.cached_tokens,
        traceparent=_header(scope, b"traceparent"),
        tracestate=_header(scope, b"tracestate"),
        asked=asked,
        error_type=None if error is None else str(error.status),
        error=None if error is None or error.status < 500 else str(error),  # 4xx is the client's, no fault of this span
    )


def _header(scope: Scope, name: bytes) -> tuple[str, ...]:
    return tuple(value.decode("latin-1") for found, value in scope["headers"] if found == name)

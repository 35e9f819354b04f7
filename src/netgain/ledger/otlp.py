"""Requests as OpenTelemetry spans, sent over OTLP: one server span each, below it one span per run of a stage.

The names of attributes are those of the GenAI semantic conventions where they have one, else `netgain.*`; docs/tracing.md
lists them. Stamps are monotonic; they become wall time by the difference of the two clocks when the spans are made, one
difference per request, so durations and gaps are exact and only the position on the calendar moves with the wall clock.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit

from netgain.errors import UsageError
from netgain.ledger.records import HandoffKind
from netgain.ledger.runs import Run, runs
from netgain.ledger.stage import Stage
from netgain.ledger.tracing import Exported, TracedChoice, TracedRequest
from netgain.wording import install_command

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AttributeValue

Protocol = Literal["http/protobuf", "grpc"]


class OtlpExport:
    """Turns finished requests into spans and sends them; blocks for at most about `timeout_s` per batch.

    A caller's sampled flag decides for its requests; of the others the share `sample_ratio` is taken.
    """

    def __init__(
        self,
        endpoint: str,
        protocol: Protocol = "http/protobuf",
        *,
        sample_ratio: float = 1.0,
        timeout_s: float = 5.0,
        resource: Mapping[str, str] | None = None,
    ) -> None:
        """Raises UsageError when the extra is not installed or the endpoint cannot be one."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import id_generator, sampling
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        self._exporter = _exporter(endpoint, protocol, timeout_s)
        self._resource = Resource.create(dict(resource or {}))
        self._scope = InstrumentationScope("netgain", (resource or {}).get("service.version"))
        self._ids = id_generator.RandomIdGenerator()
        self._sampler = sampling.ParentBased(sampling.TraceIdRatioBased(sample_ratio))

    def __call__(self, requests: Sequence[TracedRequest]) -> Exported:
        """Send one batch."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [made for request in requests if (made := self.spans(request))]
        unsampled = len(requests) - len(spans)
        flat = [span for group in spans for span in group]
        return Exported(unsampled, not flat or self._exporter.export(flat) is SpanExportResult.SUCCESS)

    def close(self) -> None:
        """Give up a delivery that waits."""
        self._exporter.shutdown()

    def spans(self, request: TracedRequest) -> list["ReadableSpan"]:
        """The spans of one request, the server's first; none where it is not sampled."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import sampling

        incoming = _incoming(request)
        parent = trace.get_current_span(incoming).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        decision = self._sampler.should_sample(incoming, trace_id, request.operation).decision
        if decision is not sampling.Decision.RECORD_AND_SAMPLE:
            return []
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        maker = _Maker(self, trace_id, parent if parent.is_valid else None, to_wall_ns)
        server = maker.context()
        spans = [maker.server(request, server)]
        for choice in request.choices:
            below = server
            if len(request.choices) > 1:
                below = maker.context()
                spans.append(maker.choice(choice, below, server))
            spans += maker.stages(choice, below)
        return spans


class _Maker:
    """Spans of one trace, on one clock."""

    def __init__(self, export: OtlpExport, trace_id: int, parent: "SpanContext | None", to_wall_ns: int) -> None:
        self._export = export
        self._trace_id = trace_id
        self._parent = parent
        self._to_wall_ns = to_wall_ns

    def context(self) -> "SpanContext":
        from opentelemetry.trace import SpanContext, TraceFlags

        state = None if self._parent is None else self._parent.trace_state
        ids = self._export._ids
        return SpanContext(self._trace_id, ids.generate_span_id(), False, TraceFlags(TraceFlags.SAMPLED), state)

    def server(self, request: TracedRequest, context: "SpanContext") -> "ReadableSpan":
        from opentelemetry.trace import SpanKind

        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": request.operation,
            "gen_ai.provider.name": "netgain",
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
            "gen_ai.response.id": request.request_id,
            "gen_ai.request.choice.count": max(1, len(request.choices)),
            **request.asked,
        }
        if request.choices:
            attributes.update(_usage(request))
        if request.error_type is not None:
            attributes["error.type"] = request.error_type
        only = request.choices[0] if len(request.choices) == 1 else None
        if only is not None:
            attributes.update(_account(only))
        return self._span(
            f"{request.operation} {request.model}",
            context,
            self._parent,
            request.received_s,
            request.finished_s,
            attributes,
            choice=only,
            kind=SpanKind.SERVER,
            error=request.error,
        )

    def choice(self, choice: TracedChoice, context: "SpanContext", parent: "SpanContext") -> "ReadableSpan":
        record = choice.record
        attributes: dict[str, AttributeValue] = {
            "netgain.choice": record.choice,
            "gen_ai.response.finish_reasons": [record.finish_reason],
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            **_account(choice),
        }
        return self._span(
            f"choice {record.choice}",
            context,
            parent,
            record.received_s,
            record.finished_s,
            attributes,
            choice=choice,
            error=record.error,
        )

    def stages(self, choice: TracedChoice, parent: "SpanContext") -> list["ReadableSpan"]:
        record = choice.record
        return [
            self._span(
                run.stage.value, self.context(), parent, run.start_s, run.end_s, _of_run(run, choice.record.choice)
            )
            for run in runs(choice.intervals, record.received_s, record.finished_s)
        ]

    def _span(
        self,
        name: str,
        context: "SpanContext",
        parent: "SpanContext | None",
        start_s: float,
        end_s: float,
        attributes: "dict[str, AttributeValue]",
        *,
        choice: TracedChoice | None = None,
        kind: "object | None" = None,
        error: str | None = None,
    ) -> "ReadableSpan":
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanKind, Status, StatusCode

        events = [] if choice is None else [Event(*event) for event in self._events(choice)]
        return ReadableSpan(
            name,
            context,
            parent,
            self._export._resource,
            attributes,
            events,
            kind=kind if isinstance(kind, SpanKind) else SpanKind.INTERNAL,
            status=Status() if error is None else Status(StatusCode.ERROR, error),
            start_time=self._wall_ns(start_s),
            end_time=self._wall_ns(end_s),
            instrumentation_scope=self._export._scope,
        )

    def _events(self, choice: TracedChoice) -> "list[tuple[str, dict[str, AttributeValue], int]]":
        """First token, and the handoffs from drafts to verification: their sum, at the end, for a request may have thousands."""
        record = choice.record
        found: list[tuple[str, dict[str, AttributeValue], int]] = []
        if record.first_token_s is not None:
            found.append(("netgain.first_token", {}, self._wall_ns(record.first_token_s)))
        if record.drafts.steps:
            drafted, accepted = sum(record.drafts.drafted), sum(record.drafts.accepted)
            told: dict[str, AttributeValue] = {
                "netgain.handoff.kind": HandoffKind.DRAFT_VERIFY.value,
                "netgain.handoff.count": record.drafts.steps,
                "netgain.handoff.used_tokens": accepted,
                "netgain.handoff.wasted_tokens": drafted - accepted,
            }
            found.append(("netgain.handoffs", told, self._wall_ns(record.finished_s)))
        return found

    def _wall_ns(self, monotonic_s: float) -> int:
        return int(monotonic_s * 1e9) + self._to_wall_ns


def _of_run(run: Run, choice: int) -> "dict[str, AttributeValue]":
    attributes: dict[str, AttributeValue] = {"netgain.choice": choice, "netgain.pieces": sum(run.pieces.values())}
    if len(run.pieces) > 1:
        for stage, seconds in run.seconds.items():
            attributes[f"netgain.merged.{stage.value}_s"] = seconds
            attributes[f"netgain.merged.{stage.value}_count"] = run.pieces[stage]
    return attributes


def _usage(request: TracedRequest) -> "dict[str, AttributeValue]":
    records = [choice.record for choice in request.choices]
    attributes: dict[str, AttributeValue] = {
        "gen_ai.response.finish_reasons": [record.finish_reason for record in records],
        "gen_ai.usage.input_tokens": request.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(record.output_tokens for record in records),
    }
    if request.cached_tokens is not None:
        attributes["gen_ai.usage.cache_read.input_tokens"] = request.cached_tokens
    return attributes


def _account(choice: TracedChoice) -> "dict[str, AttributeValue]":
    """What netgain knows of one choice beyond the conventions; what is not known is left out, never 0."""
    record = choice.record
    attributes: dict[str, AttributeValue] = {
        "netgain.draft_steps": record.drafts.steps,
        "netgain.drafted_tokens": sum(record.drafts.drafted),
        "netgain.accepted_tokens": sum(record.drafts.accepted),
    }
    if record.cached_tokens is not None:
        attributes["netgain.cached_tokens"] = record.cached_tokens
    if record.preemptions is not None:
        attributes["netgain.preemptions"] = record.preemptions
    if record.own_s is not None:
        attributes["netgain.own_s"] = record.own_s
    if record.stall_s is not None:
        attributes["netgain.stall_s"] = record.stall_s
    if record.first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.first_token_s - record.received_s
    for stage in Stage:
        if seconds := record.stages.get(stage):
            attributes[f"netgain.stage.{stage.value}_s"] = seconds
    return attributes


def _incoming(request: TracedRequest) -> "Context":
    """The caller's context by the rules of W3C Trace Context; an empty one where its headers are malformed or repeated."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if len(request.traceparent) != 1:
        return Context()
    carrier = {"traceparent": list(request.traceparent), "tracestate": list(request.tracestate)}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _exporter(endpoint: str, protocol: Protocol, timeout_s: float) -> "SpanExporter":
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        usable = False
    if not usable:
        raise UsageError(f"tracing.endpoint is {endpoint!r}; give a URL such as http://localhost:4318")
    for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # losses are said once and counted by `Tracing`
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

            return OverGrpc(endpoint=endpoint, insecure=parts.scheme == "http", timeout=timeout_s)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        path = "/v1/traces" if parts.path in ("", "/") else parts.path
        return OverHttp(endpoint=urlunsplit(parts._replace(path=path)), timeout=timeout_s)
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _missing(error: ModuleNotFoundError) -> UsageError:
    return UsageError(f"tracing.endpoint is set, but {error.name} is not installed: {install_command('otel')}")

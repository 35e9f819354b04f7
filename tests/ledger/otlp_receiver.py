"""An OpenTelemetry collector on a real socket, as far as tests need one."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """An OTLP/HTTP collector. `status` is what it answers; `hang` keeps answers back until it is set."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.paths: list[str] = []
        self.hang = threading.Event()
        self.hang.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.paths.append(self.path)
                receiver.hang.wait(120)
                if status == 200:
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        receiver.resources.append(resource.resource)
                        receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()


def attributes_of(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found

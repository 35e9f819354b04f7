"""What /metrics shows: the API process's own records, and each engine's last report, joined in one exporter."""

import asyncio
import importlib.metadata
from pathlib import Path

import msgspec

from netgain.ledger.collector import Collector
from netgain.ledger.export import JsonlWriter
from netgain.ledger.prometheus import Exporter
from netgain.ledger.tracing import Tracing
from netgain.serving.api.served import ServedModel
from netgain.serving.fleet.fleet import Fleet

_LEDGER_FAULTS = ("records_refused", "listener_failures")
_DESCRIBED = ("model", "dtype", "kv_dtype", "kernels", "device")


class Metrics:
    """Owns the records file and the way to the tracing backend, if there are any, until `close`."""

    def __init__(self, served: ServedModel, records: str | None, tracing: Tracing | None = None) -> None:
        """Raises UsageError when the records file cannot be appended to."""
        self.exporter = Exporter()
        self.tracing = tracing
        self.exporter.describe(
            {"version": importlib.metadata.version("netgain"), **{name: str(served.info[name]) for name in _DESCRIBED}}
        )
        self._writer = JsonlWriter(Path(records)) if records else None
        listeners = (self.exporter.request,) if self._writer is None else (self.exporter.request, self._writer.write)
        self.collector = Collector(on_request=listeners)

    def render(self, fleet: Fleet) -> bytes:
        """The exposition text now. An engine that does not run has no gauges: unknown, not zero."""
        for replica in fleet.health().replicas:
            if replica.stats is None:
                self.exporter.engine_gone(replica.name)
            else:
                report = {**replica.counters, **msgspec.structs.asdict(replica.stats)}
                self.exporter.engine(report, replica=replica.name, epoch=f"{replica.restarts}/{replica.pid}")
        own = self.collector.counters()
        traces = {} if self.tracing is None else self.tracing.counters()
        faults = {name: own[name] for name in _LEDGER_FAULTS}
        restarts = sum(replica.restarts for replica in fleet.health().replicas)
        mine = {"engine_restarts": restarts, "http_tasks": len(asyncio.all_tasks())}
        self.exporter.engine({**faults, **traces, **mine}, replica="api")
        return self.exporter.render()

    def close(self) -> None:
        if self.tracing is not None:
            self.tracing.close()
        if self._writer is not None:
            self._writer.close()

"""Results as sides of a comparison: netgain's own measurements, and those of other tools, imported on the way."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.heading import heading_of
from netgain.measuring.measurement.importing import impossible, read_result
from netgain.measuring.measurement.records import Row, read_records, rows_of
from netgain.measuring.measurement.result import RESULT_FILE, Measurement, read_measurement
from netgain.plain_file import read_plain

LATEST_S = 1e11  # Unix time beyond this is no date


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """One result with its counted requests, whose times are in Unix seconds where the result tells when it began."""

    path: Path
    measurement: Measurement
    rows: tuple[Row, ...]

    @property
    def span_s(self) -> tuple[float, float] | None:
        """When it began and ended, in Unix seconds; None where it does not tell."""
        if self.measurement.began_unix_s is None:
            return None
        ends = [row.record.finished_s for row in self.rows]
        return self.measurement.began_unix_s, self.measurement.began_unix_s + max(ends)


def load(sources: Sequence[str]) -> tuple[Loaded, ...]:
    """Raises UsageError that names the file and what is wrong with it."""
    paths = [Path(source) for source in sources]
    for place, path in enumerate(paths):
        if path.resolve() in [other.resolve() for other in paths[:place]]:
            raise UsageError(f"the result {path} is named twice; name each once")
    return tuple(_load(path) for path in paths)


def _load(path: Path) -> Loaded:
    measurement, rows = _own(path) if _is_own(path) else _imported(path)
    if measurement.saturation is not None:
        raise UsageError(
            f"{path} is a saturation search, whose requests came at many rates: measure both sides at one rate or concurrency"
        )
    counted = tuple(row for row in rows if row.counted)
    if not any(row.record.ok for row in counted):
        raise UsageError(f"{path} holds no request that succeeded, so there is nothing to compare")
    return Loaded(path=path, measurement=measurement, rows=counted)


def _own(path: Path) -> tuple[Measurement, tuple[Row, ...]]:
    measurement = read_measurement(path)
    if measurement.records is None:
        raise UsageError(
            f"{path} keeps figures but no requests, so neither an interval nor a pair can be made of it: import a result that "
            "has requests (vllm bench serve --save-detailed), or measure with netgain measure"
        )
    folder = path if path.is_dir() else path.parent
    rows = read_records(folder / measurement.records)
    if (odd := next((odd for row in rows if (odd := impossible(row.record)) is not None), None)) is not None:
        raise UsageError(f"{folder / measurement.records} is damaged: it tells of a request {odd}")
    if measurement.began_unix_s is not None and not 0.0 <= measurement.began_unix_s < LATEST_S:
        raise UsageError(f"{path} is damaged: it says that it began at {measurement.began_unix_s:g} s of Unix time")
    counted = sum(row.counted for row in rows)
    if counted != measurement.summary.requests:
        raise UsageError(
            f"{folder / measurement.records} has {counted} requests and {RESULT_FILE} tells of "
            f"{measurement.summary.requests}: they do not belong together, or one was cut short"
        )
    return measurement, rows


def _imported(path: Path) -> tuple[Measurement, tuple[Row, ...]]:
    measurement, imported = read_result(path)
    if not imported.records:
        raise UsageError(
            f"{path} keeps figures but no requests, so neither an interval nor a pair can be made of it: save requests as well "
            "(vllm bench serve --save-detailed)"
        )
    records = sorted(imported.records, key=lambda record: record.scheduled_s)
    return measurement, tuple(rows_of(0, records[0].scheduled_s, (), records))


def _is_own(path: Path) -> bool:
    """Whether it is netgain's, by its place or by its own word; what cannot be read is told by whoever reads it."""
    if path.is_dir():
        return (path / RESULT_FILE).is_file()
    if path.name == RESULT_FILE:
        return True
    try:
        return heading_of(read_plain(path)).known
    except OSError:
        return False

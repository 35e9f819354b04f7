"""What was measured of a model's codecs, kept beside what else is known of it, so that serving measures nothing again."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from netgain.cost import kept
from netgain.errors import UsageError
from netgain.serving.runtime.codec_gate.verdict import Row
from netgain.serving.tiers.codecs.arithmetic import Arithmetic
from netgain.serving.tiers.codecs.codec import Codec, Damaged
from netgain.serving.tiers.codecs.names import LOSSLESS
from netgain.serving.tiers.codecs.registry import build, check_name, needs_tables
from netgain.serving.tiers.codecs.tables import digest


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What KV depends on, so what a measurement is of; `kv_dtype` as torch names it."""

    weights: str
    numerics: str
    kv_dtype: str
    block_tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: SHA-256 of what it was measured on; `arithmetic`: how the codecs computed."""

    format: Literal[2] = 2
    subject: Subject
    text: str
    arithmetic: str
    taken: str
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)


def with_rows(report: Report, rows: Sequence[Row]) -> Report:
    return msgspec.structs.replace(report, rows=tuple(rows))


def text_digest(parts: Sequence[str]) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def read(cache: Path, subject: Subject) -> Report | None:
    return kept.read(_file(cache, subject), Report)


def write(cache: Path, report: Report, tables: dict[str, bytes]) -> None:
    """The tables first, so that what the report names is there. Raises OSError."""
    folder = cache / "kv-codecs"
    folder.mkdir(parents=True, exist_ok=True)
    for packed in tables.values():
        fresh = folder / f"{digest(packed)}.new"
        fresh.write_bytes(packed)
        fresh.replace(folder / f"{digest(packed)}.tables")
    kept.write(_file(cache, report.subject), report)


def usable(
    name: str, subject: Subject, cache: Path, arithmetic: Arithmetic, model: str, forced: bool = False
) -> tuple[Codec, Row | None]:
    """The codec of that name for this model, and what was measured of it. Raises UsageError for a lossy one that was not
    measured or has not passed, unless it is `forced`; one that needs tables must have been measured in any case."""
    check_name(name)
    report = read(cache, subject)
    row = report.row(name) if report else None
    measure = f"netgain cache codecs {model}"
    if name in LOSSLESS:
        return build(name, arithmetic), row
    if row is None and (needs_tables(name) or not forced):
        raise UsageError(f"the codec {name} is lossy, and what it loses on this model has not been measured: {measure}")
    codec = _with_tables(name, row, cache, arithmetic, measure) if needs_tables(name) else build(name, arithmetic)
    if row is not None and row.id != codec.id:
        if not forced:
            raise UsageError(f"the codec {name} was measured in an earlier form ({row.id}): {measure}")
        row = None
    if row is not None and row.state != "pass" and not forced:
        raise UsageError(
            f"the codec {name} did not pass its quality gate on this model ({row.state}: {row.why}): choose another, or force it"
        )
    return codec, row


def _with_tables(name: str, row: Row | None, cache: Path, arithmetic: Arithmetic, measure: str) -> Codec:
    assert row is not None
    file = cache / "kv-codecs" / f"{row.id.rpartition('.')[2]}.tables"
    try:
        codec = build(name, arithmetic, file.read_bytes())
    except (OSError, Damaged) as error:
        raise UsageError(
            f"the tables of the codec {name} cannot be read ({error}): make them again, {measure}"
        ) from error
    if codec.id != row.id:
        raise UsageError(f"the tables of the codec {name} are others than those measured: make them again, {measure}")
    return codec


def _file(cache: Path, subject: Subject) -> Path:
    return kept.file_of(cache / "kv-codecs", msgspec.to_builtins(subject))

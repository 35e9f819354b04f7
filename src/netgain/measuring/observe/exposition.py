"""Prometheus' text format, read family by family, so that one malformed family does not hide the others."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
from prometheus_client.parser import text_string_to_metric_families

Kind = Literal["counter", "gauge", "histogram", "summary", "unknown"]
Labels = tuple[tuple[str, str], ...]  # sorted by name

_HEADING = re.compile(r"#\s+(?:HELP|TYPE)\s+(\S+)")
_KINDS: Mapping[str, Kind] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "summary": "summary",
}
_SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")
_MODEL_LABELS = ("model_name", "model")
START_TIME = "process_start_time_seconds"


class Sample(msgspec.Struct, frozen=True):
    """One line: the sample's name (a histogram's end in _bucket, _sum, _count), its labels and its value."""

    name: str
    labels: Labels
    value: float


class Family(msgspec.Struct, frozen=True):
    """The samples under one `# TYPE`. A counter's `name` ends in `_total` where its samples do."""

    name: str
    kind: Kind
    samples: tuple[Sample, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """One scrape. `at_s`: client's monotonic time in the middle of it. `problems` say which families could not be read."""

    at_s: float
    families: Mapping[str, Family]
    problems: tuple[str, ...] = ()


def read_exposition(text: str, at_s: float) -> Snapshot:
    """Never raises: what cannot be read is a problem of that family, and the other families are there."""
    found: dict[str, tuple[Kind, list[Sample]]] = {}  # lines without a heading come as a family each
    problems: list[str] = []
    for name, part in _parts(text):
        try:
            for family in text_string_to_metric_families(part):
                samples = [
                    Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                ]
                if not samples:
                    continue
                kind = _KINDS.get(family.type, "unknown")
                full = samples[0].name if kind == "counter" else family.name
                earlier = found[full][1] if full in found else []
                earlier += samples
                found[full] = (kind, earlier)
        except (ValueError, KeyError, IndexError) as error:
            problems.append(f"{name}: cannot be read ({str(error)[:200]})")
    families = {name: Family(name, kind, tuple(samples)) for name, (kind, samples) in found.items()}
    return Snapshot(at_s, families, tuple(problems))


def of_model(snapshot: Snapshot, model: str) -> Snapshot:
    """Without the series that name another model, where some name this one: a server of several tells of all of them."""
    named = {
        value
        for family in snapshot.families.values()
        for sample in family.samples
        for label, value in sample.labels
        if label in _MODEL_LABELS
    }
    if model not in named or len(named) == 1:
        return snapshot
    families: dict[str, Family] = {}
    for name, family in snapshot.families.items():
        own = tuple(
            sample
            for sample in family.samples
            if all(value == model for label, value in sample.labels if label in _MODEL_LABELS)
        )
        if own:
            families[name] = Family(name, family.kind, own)
    return Snapshot(snapshot.at_s, families, snapshot.problems)


def could_not_read(snapshot: Snapshot, name: str) -> bool:
    """Whether the family that a counter's or a histogram's name belongs to was there and malformed."""
    return any(problem.startswith(f"{_base(name)}:") for problem in snapshot.problems)


def start_time_s(snapshot: Snapshot) -> float | None:
    """When the server's process says that it started (Unix seconds); None where it does not say."""
    family = snapshot.families.get(START_TIME)
    values = [sample.value for sample in family.samples if math.isfinite(sample.value)] if family else []
    return max(values, default=None)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """(name, lines) of each family: a heading, or a sample of another name, begins the next one."""
    current, lines = "", list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        if not line.strip():
            continue
        heading = _HEADING.match(line)
        if heading is not None:
            name = _base(heading[1])
        elif line.lstrip().startswith("#"):
            continue
        else:
            name = _base(re.split(r"[{\s]", line.strip(), maxsplit=1)[0])
        if lines and name != current:
            yield current, "\n".join(lines) + "\n"
            lines = []
        current = name
        lines.append(line)
    if lines:
        yield current, "\n".join(lines) + "\n"


def _base(name: str) -> str:
    """The common stem of a family's samples and heading. All suffixes go: vLLM has a histogram whose own name ends in _total."""
    while any(name.endswith(suffix) for suffix in _SUFFIXES):
        name = name[: name.rindex("_")]
    return name

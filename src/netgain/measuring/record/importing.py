"""Other servers' logs and public traces, made into recordings: one reader per format, and nothing dropped without a count."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from netgain.errors import UsageError
from netgain.measuring.record.entry import Entry, Unit
from netgain.measuring.record.from_litellm import read_litellm
from netgain.measuring.record.from_otel import read_otel
from netgain.measuring.record.from_traces import read_azure, read_burstgpt, read_mooncake
from netgain.measuring.record.from_vllm import read_vllm
from netgain.measuring.record.hashing import BLOCK_BYTES, Hasher
from netgain.measuring.record.journal import Journal
from netgain.measuring.record.source import Skipped, SourceFile

Format = Literal["vllm", "litellm", "otel", "mooncake", "azure", "burstgpt"]
Reader = Callable[[SourceFile, Hasher], Iterator[Entry | Skipped]]


class Kind(msgspec.Struct, frozen=True):
    """How a format is read, in which blocks it gives prompts, and what readers of the recording must know."""

    read: Reader
    block_unit: Unit | None
    block_size: int | None
    notes: tuple[str, ...] = ()


FORMATS: Mapping[Format, Kind] = {
    "vllm": Kind(
        read_vllm,
        "bytes",
        BLOCK_BYTES,
        (
            "arrivals have a resolution of one second, as vLLM's log has unless it is JSON; the year is that of the file",
            "prompts are the rendered text or token ids of the log (debug level); without them there are no blocks",
        ),
    ),
    "litellm": Kind(read_litellm, "bytes", BLOCK_BYTES),
    "otel": Kind(read_otel, None, None, ("spans carry no prompt, so nothing is known of shared prefixes",)),
    "mooncake": Kind(read_mooncake, "tokens", 512, ("arrivals count from the beginning of the trace",)),
    "azure": Kind(read_azure, None, None),
    "burstgpt": Kind(read_burstgpt, None, None, ("arrivals count from the beginning of the trace",)),
}


class Imported(msgspec.Struct, frozen=True):
    """How many requests came out of the files, and which lines did not make one, by reason."""

    requests: int
    skipped: dict[str, int]


def import_logs(files: Sequence[Path], kind: Format, output: Path, *, with_text: bool = False) -> Imported:
    """Write one recording from `files`, in order of arrival where that is known.

    Raises UsageError when a file cannot be read, or holds no request of this format.
    """
    form = FORMATS[kind]
    hasher = Hasher()
    entries: list[Entry] = []
    skipped: Counter[str] = Counter()
    for path in files:
        before = len(entries)
        for found in form.read(SourceFile(path), hasher):
            if isinstance(found, Skipped):
                skipped[found.reason] += 1
            else:
                entries.append(found if with_text else msgspec.structs.replace(found, request=None, answer=None))
        if len(entries) == before:
            raise UsageError(f"{path} holds no request in the format {kind!r}{_other(path, kind)}")
    entries.sort(key=lambda entry: (entry.arrived_unix_s is None, entry.arrived_unix_s or 0.0))
    journal = Journal(
        output,
        kind,
        block_unit=form.block_unit,
        block_size=form.block_size,
        with_text=with_text,
        notes=form.notes,
    )
    for entry in entries:
        journal.write(entry)
    journal.close()
    if journal.lost:
        raise UsageError(f"{journal.lost} of {len(entries)} requests could not be written to {output}; make room")
    return Imported(len(entries), dict(skipped))


def _other(path: Path, kind: Format) -> str:
    for name, form in FORMATS.items():
        if name != kind and any(isinstance(found, Entry) for found in form.read(SourceFile(path), Hasher())):
            return f"; it looks like {name!r}: use --format {name}"
    return f"; known formats: {', '.join(FORMATS)}"

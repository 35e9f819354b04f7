"""The prompts of recorded traffic as keys of their blocks, in order of arrival: what a hit-rate curve is computed from."""

from collections.abc import Hashable
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.measuring.record.entry import Entry, Recording, Unit
from netgain.measuring.record.from_traces import read_mooncake
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.importing import FORMATS
from netgain.measuring.record.journal import Unreadable, read_recording
from netgain.measuring.record.source import Skipped, SourceFile


class Prefixes(msgspec.Struct, frozen=True, kw_only=True):
    """`prompts` are those whose blocks are known, `unknown` counts the others. `block_tokens` is how many tokens a block has,
    on average where blocks were cut in bytes (None: no request told both lengths)."""

    prompts: tuple[tuple[Hashable, ...], ...]
    unknown: int
    unreadable: int
    block_size: int
    block_unit: Unit
    block_tokens: float | None


def read_prefixes(path: Path) -> Prefixes:
    """Of a recording, or of a trace in Mooncake's form. Raises UsageError: unreadable, or nothing is known of its prompts."""
    found = _mooncake(path) if _is_mooncake(path) else _recording(path)
    if not found.prompts:
        raise UsageError(f"{path} tells nothing of its prompts' blocks, so nothing can be said of their reuse")
    return found


def _is_mooncake(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b'"hash_ids"' in file.readline(1 << 20)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _mooncake(path: Path) -> Prefixes:
    entries: list[Entry] = []
    skipped = 0
    for found in read_mooncake(SourceFile(path), Hasher()):
        if isinstance(found, Skipped):
            skipped += 1
        else:
            entries.append(found)
    size = FORMATS["mooncake"].block_size or 0
    entries.sort(key=_arrival)
    prompts = tuple(entry.blocks for entry in entries if entry.blocks)
    return Prefixes(
        prompts=prompts,
        unknown=len(entries) - len(prompts),
        unreadable=skipped,
        block_size=size,
        block_unit="tokens",
        block_tokens=float(size),
    )


def _recording(path: Path) -> Prefixes:
    """Ids of several recordings in one file are not compared, and their blocks have to be of one kind."""
    kinds: set[tuple[int, Unit]] = set()
    timed: list[tuple[float, tuple[Hashable, ...]]] = []
    unknown = unreadable = 0
    size_seen = tokens_seen = 0
    recording: Recording | None = None
    for line in read_recording(path):
        match line:
            case Recording():
                recording = line
            case Unreadable():
                unreadable += 1
            case Entry(blocks=blocks) if blocks and recording is not None and recording.block_size is not None:
                kinds.add((recording.block_size, recording.block_unit or "bytes"))
                name = recording.recording
                timed.append((_arrival(line), tuple((name, block) for block in blocks)))
                if line.prompt_size and line.prompt_tokens:
                    size_seen += line.prompt_size
                    tokens_seen += line.prompt_tokens
            case Entry():
                unknown += 1
    if len(kinds) > 1:
        raise UsageError(f"{path} holds recordings with blocks of different sizes; give them one at a time")
    timed.sort(key=lambda pair: pair[0])
    block_size, unit = kinds.pop() if kinds else (0, "bytes")
    in_tokens = float(block_size) if unit == "tokens" else None
    return Prefixes(
        prompts=tuple(prompt for _, prompt in timed),
        unknown=unknown,
        unreadable=unreadable,
        block_size=block_size,
        block_unit=unit,
        block_tokens=in_tokens or (block_size * tokens_seen / size_seen if size_seen else None),
    )


def _arrival(entry: Entry) -> float:
    """Requests whose arrival is not known stay in the order of the file, at the end."""
    return float("inf") if entry.arrived_unix_s is None else entry.arrived_unix_s

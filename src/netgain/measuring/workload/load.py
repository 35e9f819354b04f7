"""Where workloads come from: a bundled name or a JSONL file, with errors that name the line and the remedy."""

import difflib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.measuring.workload.item import Item, Message, Workload
from netgain.plain_file import as_text, read_plain

_BUNDLED = "netgain.measuring.workload.bundled"
DOCUMENTS = "{documents}"  # where an item's documents stand
BETWEEN = "\n\n"  # documents


class _Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that defines messages which later items begin with, by name."""

    define: str
    messages: tuple[Message, ...]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that defines a text which later items hold as a piece, by name."""

    define: str
    document: str


class _Kind(msgspec.Struct, frozen=True):
    define: str | None = None
    document: str | None = None


def bundled_names() -> tuple[str, ...]:
    """The workloads that come with netgain, sorted."""
    found = (entry.name for entry in resources.files(_BUNDLED).iterdir())
    return tuple(sorted(name.removesuffix(".jsonl") for name in found if name.endswith(".jsonl")))


def load_workload(source: str | Path) -> Workload:
    """Load a bundled workload by name, or a JSONL file by path (anything with a separator or a suffix is a path).

    Raises UsageError that names what is wrong: no such name (with the nearest), no such file, or the faulty line.
    """
    text = str(source)
    if isinstance(source, Path) or "/" in text or "\\" in text or Path(text).suffix or _is_file(text):
        return _from_file(Path(text))
    names = bundled_names()
    if text in names:
        return parse_workload(text, (resources.files(_BUNDLED) / f"{text}.jsonl").read_bytes())
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"there is no workload {text!r}: {hint}Bundled: {', '.join(names)}. Or give the path of a JSONL file."
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a name that no file can have
        return False


def _from_file(path: Path) -> Workload:
    try:
        data = read_plain(path.expanduser())
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~ of an unknown user; ValueError: a NUL
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the workload file {path} cannot be read: {reason}; check the path") from error
    return parse_workload(as_text(path.stem), data)


def parse_workload(name: str, data: bytes) -> Workload:
    """Parse JSONL: one item a line; a line with `define` names messages that items refer to with `context`, or a document that
    stands with others in place of `{documents}` in the text of items that list it.

    Blank lines are skipped. Raises UsageError with the number of the faulty line.
    """
    contexts: dict[str, tuple[Message, ...]] = {}
    documents: dict[str, str] = {}
    items: list[Item] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"workload {name!r}, line {number}"
        try:
            kind = msgspec.json.decode(line, type=_Kind)
            if kind.define is not None and kind.document is not None:
                document = msgspec.json.decode(line, type=_Document)
                documents[document.define] = document.document
                continue
            if kind.define is not None:
                context = msgspec.json.decode(line, type=_Context)
                contexts[context.define] = context.messages
                continue
            item = msgspec.json.decode(line, type=Item)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{where}: {error}; each line must be a JSON object like {_EXAMPLE}") from error
        if item.context is not None:
            if item.context not in contexts:
                raise UsageError(f"{where}: the context {item.context!r} is not defined above this line")
            item = msgspec.structs.replace(item, messages=(*contexts[item.context], *item.messages))
        item = _with_documents(item, documents, where)
        if problem := item.problem():
            raise UsageError(f"{where}: {problem}")
        items.append(item)
    return Workload(name=name, items=tuple(items))


def _with_documents(item: Item, documents: Mapping[str, str], where: str) -> Item:
    """The item with its documents as text, and as chunks."""
    texts = [item.prompt or "", *(message.content for message in item.messages)]
    places = sum(text.count(DOCUMENTS) for text in texts)
    if not item.documents:
        return item
    if unknown := [name for name in item.documents if name not in documents]:
        raise UsageError(f"{where}: the document {unknown[0]!r} is not defined above this line")
    if places != 1:
        raise UsageError(
            f"{where}: it has documents, and its text has {DOCUMENTS} {places} times; say once where they stand"
        )
    found = tuple(documents[name] for name in item.documents)
    joined = BETWEEN.join(found)
    return msgspec.structs.replace(
        item,
        prompt=None if item.prompt is None else item.prompt.replace(DOCUMENTS, joined),
        messages=tuple(
            msgspec.structs.replace(message, content=message.content.replace(DOCUMENTS, joined))
            for message in item.messages
        ),
        chunks=(*item.chunks, *found),
    )


_EXAMPLE = '{"id": "a1", "category": "chat", "max_tokens": 64, "messages": [{"role": "user", "content": "..."}]}'

"""Texts on which a model's law is measured: bundled ones or the user's own, cut into pieces that fit a context."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.measuring.workload.load import bundled_names, load_workload
from netgain.plain_file import read_plain

BUNDLED = "bundled"
PIECE_CHARACTERS = (
    2000  # a few hundred tokens: fits every context, and the first token of a piece is the only one unscored
)
SHORTEST_CHARACTERS = 120  # below it most of a piece is a beginning, which says little of the model


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """One piece to score. `prompt` is text, or token ids where they are known (a recorded conversation, for instance). It holds
    the texts `chunks`, which servers that join chunks are told of; what stands from the token `behind` on follows them all."""

    name: str
    category: str
    prompt: str | tuple[int, ...]
    chunks: tuple[str, ...] = ()
    behind: int = 0

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the text; None for token ids."""
        return len(self.prompt.encode("utf-8", "replace")) if isinstance(self.prompt, str) else None


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    name: str | None = None
    category: str | None = None


def load_texts(source: str | Path = BUNDLED, piece_characters: int = PIECE_CHARACTERS) -> tuple[Text, ...]:
    """`bundled`, or a file: JSONL with a `text` per line (and `name`, `category`), or any other as one plain text.

    Raises UsageError that names the file or the faulty line.
    """
    if piece_characters < SHORTEST_CHARACTERS:
        raise UsageError(f"pieces of {piece_characters} characters are too short; give at least {SHORTEST_CHARACTERS}")
    wholes = _bundled() if str(source) == BUNDLED else _from_file(Path(source))
    texts: list[Text] = []
    for whole in wholes:
        assert isinstance(whole.prompt, str)
        pieces = list(_pieces(whole.prompt, piece_characters))
        texts += [
            Text(
                name=f"{whole.name}-{number}" if len(pieces) > 1 else whole.name, category=whole.category, prompt=piece
            )
            for number, piece in enumerate(pieces, start=1)
        ]
    if not texts:
        raise UsageError(f"{source} holds no text; give a file with at least one word")
    return tuple(texts)


def _bundled() -> list[Text]:
    """What the messages of the bundled workloads say, each once: prose, code in several languages, data, tables, logs."""
    found: dict[str, Text] = {}
    for name in bundled_names():
        for item in load_workload(name).items:
            if item.chunks:  # the same few documents in ever another order
                continue
            for place, message in enumerate(item.messages):
                if len(message.content) >= SHORTEST_CHARACTERS and message.content not in found:
                    found[message.content] = Text(
                        name=f"{item.context or item.id}-{place}", category=item.category, prompt=message.content
                    )
    return list(found.values())


def _from_file(path: Path) -> list[Text]:
    try:
        data = read_plain(path.expanduser())
        content = data.decode("utf-8-sig")
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the texts {path} cannot be read: {reason}; give a UTF-8 file, or {BUNDLED!r}") from error
    if path.suffix != ".jsonl":
        return [Text(name=path.stem, category=path.stem, prompt=content)] if content.strip() else []
    texts: list[Text] = []
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            example = '{"text": "...", "category": "manuals"}'
            raise UsageError(f"{path}, line {number}: {error}; each line must be an object like {example}") from error
        if read.text.strip():
            texts.append(
                Text(name=read.name or f"line-{number}", category=read.category or path.stem, prompt=read.text)
            )
    return texts


def _pieces(text: str, most: int) -> Iterator[str]:
    """Cut at the last paragraph, line or word that ends within `most` characters; nothing is lost but blank ends."""
    rest = text.strip("\n")
    while len(rest) > most:
        cut = next((at for mark in ("\n\n", "\n", " ") if (at := rest.rfind(mark, most // 2, most)) > 0), most)
        yield rest[:cut]
        rest = rest[cut:].lstrip("\n ")
    if rest.strip():
        yield rest

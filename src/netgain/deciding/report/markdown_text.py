"""Words, tables and fences of GitHub's Markdown, in which nothing that comes from outside is taken for markup."""

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*_{}\[\]|~$]")
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("://", "&#58;//"), ("www.", "www&#46;"))
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Within a line, meant as it stands: no markup, HTML, link, mention of a person or of an issue."""
    line = " ".join(_UNPRINTABLE.sub("", text).split())
    for raw, entity in _ENTITIES:
        line = line.replace(raw, entity)
    line = _SPECIAL.sub(lambda found: "\\" + found[0], line)
    return re.sub(r"(?<!&)([@#])(?=\w)", r"\1<!-- -->", line)  # an escape does not keep GitHub from linking these


def begin(text: str) -> str:
    """The same at the beginning of a paragraph, where it would be a heading or a list."""
    return re.sub(r"^(#|[-+=]|\d+(?=[.)](?:\s|$)))", _escaped_start, plain(text))


def _escaped_start(found: re.Match[str]) -> str:
    """What would begin a heading or a list: a number is followed by the sign that does so, which is escaped instead."""
    return found[0] + "\\" if found[0].isdigit() else "\\" + found[0]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Cells are escaped here; after the first `words` columns they are figures, to the right. Empty where there is no row."""
    lines = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    if not lines:
        return []
    marks = ["---" if place < words else "---:" for place in range(len(columns))]
    return ["| " + " | ".join(map(plain, columns)) + " |", "| " + " | ".join(marks) + " |", *lines, ""]


def fence(text: str, language: str = "") -> list[str]:
    """As it stands, in a fence longer than any that is in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return [marks + language, *_UNPRINTABLE.sub("", text).rstrip("\n").split("\n"), marks, ""]


def items(lines: Iterable[str]) -> list[str]:
    """A list, with an empty line after it; nothing where it is empty."""
    found = [f"- {begin(line)}" for line in lines]
    return [*found, ""] if found else []


def sentence(text: str) -> str:
    """Escaped, with a capital at its beginning and a full stop at its end."""
    words = " ".join(text.split())
    words = words[:1].upper() + words[1:]
    return begin(words if words.endswith((".", "?", "!", ":")) else words + ".")

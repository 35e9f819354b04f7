"""Keys, tokens and passwords that stand in command lines, settings and outputs: shown and kept without their values."""

import re
from collections.abc import Sequence

HIDDEN = "***"
_NAME = r"[\w.-]*(?:api[-_]?key|(?:auth|access|bearer|hf|hub|session)[-_]?token|passw(?:or)?d|secret|credential|authorization)"
_IS_SECRET = re.compile(rf"-*{_NAME}", re.IGNORECASE)
_IN_TEXT = re.compile(
    rf"((?<![\w.-]){_NAME}['\"]?\s*[=:]\s*[\['\"]*(?:(?:bearer|basic)\s+)?"  # NAME=VALUE, NAME: VALUE, 'NAME': ['VALUE']
    rf"|--?{_NAME}\s+['\"]?"  # --name VALUE
    r"|\bbearer\s+)([^\s'\",;\]})]+)",
    re.IGNORECASE,
)
_KNOWN_FORMS = re.compile(r"\b(?:sk-|hf_|ghp_|xox[bp]-)[\w-]{8,}")
_IN_URL = re.compile(r"(://)[^/\s'\"]+(@)")
_OF_ADDRESS = re.compile(r"\A([\w+.-]*:(?://)?)?.*@", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a setting, variable or option of this name holds a secret. `api-keys`, a file of them, does not."""
    return _IS_SECRET.fullmatch(name) is not None


def without_secrets(text: str) -> str:
    """A text with the values of what names a secret, and what looks like one, hidden."""
    hidden = _IN_TEXT.sub(rf"\1{HIDDEN}", text)
    return _IN_URL.sub(rf"\1{HIDDEN}\2", _KNOWN_FORMS.sub(HIDDEN, hidden))


def without_userinfo(address: str) -> str:
    """An address, and nothing else, with what stands before its host hidden: up to the last @, since people leave the @ and / of
    their passwords as they are."""
    return _OF_ADDRESS.sub(rf"\1{HIDDEN}@", address)


def words_without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, the value of an option that takes a secret hidden, whether it stands behind = or next."""
    found: list[str] = []
    hide = False
    for word in words:
        if hide and not word.startswith("-"):
            found.append(HIDDEN)
        else:
            found.append(without_secrets(word))
        hide = word.startswith("-") and is_secret(word)
    return tuple(found)

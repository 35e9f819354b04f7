"""Keys, tokens and passwords that stand in command lines, settings and outputs: shown and kept without their values."""

import re
from collections.abc import Sequence

HIDDEN = "***"
# what a setting or option is called that holds one; `token` and `key` alone are words of this trade (eos_token, routing_key)
_OWNER = (
    r"(?:api|auth|access|admin|account|bearer|bot|client|deploy|github|gitlab|hf|hub|id|master|personal|refresh|registry|service|"
    r"session|user|vault)"
)
_KEY_OF = r"(?:api|access|account|client|encryption|private|secret|shared|signing|master)"
_WRITTEN = (
    rf"{_OWNER}[-_]?token|{_KEY_OF}[-_]?key(?:[-_]?id)?|passw(?:or)?d|passphrase|secret|credentials?|authorization"
)
_OF_ENVIRONMENT = r"(?-i:[A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASS|PASSWD|PASSWORD|PWD|CREDENTIALS?|KEY_ID))"
_NAME = rf"(?:[\w.-]*(?:{_WRITTEN})|{_OF_ENVIRONMENT})"
_IS_SECRET = re.compile(rf"-*(?:{_NAME}|token)", re.IGNORECASE)
_IN_TEXT = re.compile(
    rf"((?<![\w.-]){_NAME}['\"]?\s*[=:]\s*[\['\"]*(?:(?:bearer|basic)\s+)?"  # NAME=VALUE, NAME: VALUE, 'NAME': ['VALUE']
    rf"|(?<!\S)--?(?:{_NAME}|token)[\s=]+['\"]?"  # --name VALUE
    r"|(?<![\w.-])token="
    r"|\bbearer\s+)([^\s'\",;\]})]+)",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"((?<![\w-])(?:proxy-)?authorization['\"]?\s*[:=]\s*[\['\"]*)([^'\"\n]+)", re.IGNORECASE
)  # any scheme
_OF_USER = re.compile(r"((?<!\S)(?:-u|--user)[\s=]+['\"]?(?!\d+:\d+\b)[^\s:'\"]*:)([^\s'\"]+)")  # 1000:1000 are ids
_KNOWN_FORMS = re.compile(r"\b(?:sk-|hf_|ghp_|xox[bp]-)[\w-]{8,}")
_IN_URL = re.compile(r"(://)[^/\s'\"]+(@)")
_OF_ADDRESS = re.compile(r"\A([\w+.-]*:(?://)?)?.*@", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a setting, variable or option of this name holds a secret. `api-keys`, a file of them, does not."""
    return _IS_SECRET.fullmatch(name) is not None


def without_secrets(text: str) -> str:
    """A text with the values of what names a secret, and what looks like one, hidden."""
    hidden = _HEADER.sub(rf"\1{HIDDEN}", text)
    for pattern in (_IN_TEXT, _OF_USER):
        hidden = pattern.sub(rf"\1{HIDDEN}", hidden)
    return _IN_URL.sub(rf"\1{HIDDEN}\2", _KNOWN_FORMS.sub(HIDDEN, hidden))


def without_userinfo(address: str) -> str:
    """An address, and nothing else, with what stands before its host hidden: up to the last @, since people leave the @ and / of
    their passwords as they are."""
    return _OF_ADDRESS.sub(rf"\1{HIDDEN}@", address)


def words_without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, the value of an option that takes a secret hidden, whether it stands behind = or next."""
    found: list[str] = []
    before = ""
    for word in words:
        if before.startswith("-") and is_secret(before) and not word.startswith("--"):  # a key may begin with one -
            found.append(HIDDEN)
        elif before in ("-u", "--user"):
            found.append(without_secrets(f"{before} {word}").removeprefix(f"{before} "))
        else:
            found.append(without_secrets(word))
        before = word
    return tuple(found)

"""HTTP headers as a person types them."""

import re

from netgain.errors import UsageError

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def header(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises UsageError, which does not repeat a value: it may be a key."""
    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise UsageError(f"the header {text.partition('=')[0]!r} is not understood; write NAME=VALUE")
    if not _TOKEN.fullmatch(name.strip()):
        raise UsageError(f"the header name {name.strip()!r} cannot be sent; it must be a word such as Authorization")
    if not value.isprintable():  # also a line end, which would begin a header of its own
        raise UsageError(
            f"the value of the header {name.strip()} holds characters that cannot be sent, such as a line end"
        )
    return name.strip(), value.strip()

"""HTTP headers as a person types them."""

from netgain.errors import UsageError


def header(text: str) -> tuple[str, str]:
    """Read NAME=VALUE. Raises UsageError, which does not repeat a value: it may be a key."""
    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise UsageError(f"the header {text.partition('=')[0]!r} is not understood; write NAME=VALUE")
    return name.strip(), value.strip()

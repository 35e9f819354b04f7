"""The codecs by name, for settings and commands: what only names them imports none of their arithmetic."""

from difflib import get_close_matches

NAMES = ("raw", "zstd", "fp8", "int8", "int4", "cachegen-fine", "cachegen", "cachegen-coarse")
LOSSLESS = frozenset({"raw", "zstd"})


def unknown(name: str) -> str | None:
    """What to say, with the nearest name, of what is no codec; None for one that is."""
    if name in NAMES:
        return None
    near = get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no KV codec {name!r}: {hint}known are {', '.join(NAMES)}"

"""Where netgain keeps files of the user's."""

import os
from pathlib import Path

from netgain.errors import UsageError


def cache_folder() -> Path:
    """NETGAIN_CACHE, else netgain in XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("NETGAIN_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise UsageError(f"NETGAIN_CACHE is {chosen!r}: {error} Give a folder of yours") from error
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netgain"
    except RuntimeError as error:
        raise UsageError("this user has no home folder; set NETGAIN_CACHE to a folder of yours") from error

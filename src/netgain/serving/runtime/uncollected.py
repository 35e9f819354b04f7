"""Loading without garbage collections: it makes a million objects that stay, which would be looked through dozens of times."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No collection happens within, and none later looks at what was there when it ended. For a process's start, once."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

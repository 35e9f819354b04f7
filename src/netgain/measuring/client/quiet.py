"""Keeps Python's garbage collector from stopping the client in the middle of a run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (
    20_000,
    20,
    100,
)  # new containers before the youngest are looked through, and how much rarer the older ones


@contextmanager
def quiet() -> Iterator[None]:
    """Collections within look only at what was made within, and seldom.

    Looking through all modules of this program stops it for tens of milliseconds, and every chunk that arrives meanwhile is
    stamped late. Not switched off: a long run makes cycles.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

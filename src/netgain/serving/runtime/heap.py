"""Memory that was freed, given back to the system."""

import ctypes
import sys


def give_back_freed_memory() -> None:
    """What loading a model needed for a while stays with glibc's allocator otherwise: 300 MB for the default model in bf16.
    Other C libraries give it back by themselves, or have no way to be told."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

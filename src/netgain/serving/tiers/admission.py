"""What a tier takes: everything that was computed, or only what was used a second time, so that prompts nobody repeats neither
wear a disk out nor push out what is repeated. Bookkeeping only; owns no bytes of KV."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol

REMEMBERED = 1 << 17
"""Keys a rule remembers at least, twice as many at most: of blocks of 16 tokens, 2 million tokens of prompts."""
_KEY_BYTES = (
    8  # of a key, which is a hash: that two of a million are taken for one another is less likely than 1 in 10 million
)


class Admission(Protocol):
    """Asked once for every use of a block, on one thread."""

    def computed(self, key: bytes) -> bool:
        """A block was computed; whether it is to be stored."""
        ...

    def used(self, key: bytes) -> bool:
        """A block was used where it is, on the device; whether it is to be stored now, which is so once."""
        ...

    def lost(self, key: bytes) -> None:
        """A block that was to be stored was not, for want of room or because writing it failed: its next use is to store it."""
        ...


class SecondUse:
    """Admits a block from its second use on, as far back as uses are remembered.

    Two generations of at most `keys` each: when the younger one is full, the older one is forgotten. An entry takes about 130
    bytes, so 34 MB at most with REMEMBERED.
    """

    def __init__(self, keys: int = REMEMBERED) -> None:
        self._most = keys
        self._young: dict[bytes, bool] = {}  # whether it was used again
        self._old: dict[bytes, bool] = {}

    @property
    def remembered(self) -> int:
        """Keys whose uses are known."""
        return len(self._young.keys() | self._old.keys())

    def computed(self, key: bytes) -> bool:
        again = self._uses(key) is not None
        self._remember(key, again)
        return again

    def used(self, key: bytes) -> bool:
        before = self._uses(key)
        self._remember(key, True)
        return before is not True

    def lost(self, key: bytes) -> None:
        self._remember(key, False)

    def _uses(self, key: bytes) -> bool | None:
        """Whether there was more than one; None: there was none."""
        short = key[:_KEY_BYTES]
        return self._young.get(short, self._old.get(short))

    def _remember(self, key: bytes, again: bool) -> None:
        self._young[key[:_KEY_BYTES]] = again
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}


RULES: MappingProxyType[str, Callable[[], Admission] | None] = MappingProxyType({"all": None, "second-use": SecondUse})
"""What users may ask for; None: there is nothing to decide."""

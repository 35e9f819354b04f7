"""Which tier has which block of running requests, as far as they told: what is there is not stored once more."""

from collections.abc import Mapping, Sequence
from typing import Any

from netgain.serving.engine.kv_load import Load


class Whereabouts:
    """By request and key, the number of the fastest tier that has the block; None: no tier."""

    def __init__(self) -> None:
        self._places: dict[str, dict[bytes, int | None]] = {}

    def located(self, load: Load, places: Sequence[int | None]) -> None:
        self._places[load.sequence.id] = dict(zip(load.keys, places, strict=False))

    def came(self, load: Load, first: int, blocks: Sequence[Any]) -> None:
        """What was asked for, from the block numbered `first` on. What a tier could not give (None), it has not: it is stored
        anew once it is computed."""
        places = self._places.get(load.sequence.id, {})
        for key, block in zip(load.keys[first:], blocks, strict=False):
            if block is None:
                places.pop(key, None)

    def of(self, request_id: str) -> Mapping[bytes, int | None]:
        return self._places.get(request_id, {})

    def forget(self, request_id: str) -> None:
        self._places.pop(request_id, None)

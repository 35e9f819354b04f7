"""How much of a workload a run sends, and which part of it counts."""

import msgspec

from netgain.errors import UsageError


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The first `warm_up` requests are sent like all others and not counted, so that what counts begins under load.

    After them come `requests` requests (None: as many as the workload has items, or as time allows with `send_for_s`), none
    sent later than `send_for_s` seconds after the first that counts. Items are gone through again when they are used up.
    """

    warm_up: int = 0
    requests: int | None = None
    send_for_s: float | None = None

    def __post_init__(self) -> None:
        if self.warm_up < 0 or (self.requests is not None and self.requests < 1):
            raise UsageError(
                f"{self.requests} requests after {self.warm_up} for warming up cannot be sent; send at least one request"
            )
        if self.send_for_s is not None and not self.send_for_s > 0.0:
            raise UsageError(
                f"requests are to be sent for {self.send_for_s} s; it must be a positive number of seconds"
            )

    def most(self, items: int) -> int | None:
        """Requests at most, warm-up included; None: only time limits them."""
        counted = self.requests if self.requests is not None else None if self.send_for_s is not None else items
        return None if counted is None else self.warm_up + counted

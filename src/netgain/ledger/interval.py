"""One wait of a request, as it is measured, sent between processes and recorded."""

import msgspec

from netgain.ledger.stage import Stage


class Interval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One measured wait, in seconds of the host's monotonic clock."""

    stage: Stage
    start_s: float
    end_s: float

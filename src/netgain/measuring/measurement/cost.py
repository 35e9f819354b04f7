"""What a measurement cost at a price per device-hour, over its window of steady load."""

import msgspec

from netgain.cost.price import Cost, Devices, Price, Served, cost
from netgain.errors import UsageError
from netgain.measuring.client.summary import Summary
from netgain.measuring.measurement.devices import devices_told
from netgain.measuring.measurement.result import Measurement


class Pricing(msgspec.Struct, frozen=True, kw_only=True):
    """`devices`: how many are paid for (None: as many as the server says, else one)."""

    price: Price
    devices: int | None = None

    def __post_init__(self) -> None:
        if self.devices is not None and self.devices < 1:
            raise UsageError(f"the devices are {self.devices}; pay for at least 1")


def cost_of(measurement: Measurement, pricing: Pricing) -> Cost:
    """Of a measurement whose client was the bottleneck nothing is known but what was paid."""
    summary = measurement.summary
    met = None if summary.attainment is None else summary.attainment * summary.requests
    served = served_in_window(summary, met, summary.slo is not None)
    if not summary.usable:
        served = msgspec.structs.replace(served, output_tokens=None, prompt_tokens=None, met_slo=None)
    return cost(pricing.price, _devices(measurement, pricing), served)


def served_in_window(summary: Summary, met: float | None, slo: bool) -> Served:
    """What came within the steady load. Output tokens are those stamped in it; of the successful requests that ended in it as
    many met the SLO, and had as many prompt tokens each, as of all that count, of which `met` met it."""
    ended = None if summary.requests_per_s is None else summary.requests_per_s * summary.window_s
    each = None if ended is None or not summary.succeeded else ended / summary.succeeded
    rate = summary.output_tokens_per_s
    return Served(
        seconds=summary.window_s,
        output_tokens=None if rate is None else rate * summary.window_s,
        prompt_tokens=None if each is None or summary.prompt_tokens is None else each * summary.prompt_tokens,
        met_slo=0.0 if met == 0.0 else None if each is None or met is None else each * met,
        slo=slo,
    )


def _devices(measurement: Measurement, pricing: Pricing) -> Devices:
    if pricing.devices is not None:
        return Devices(count=pricing.devices, said_by="as --devices says")
    told = devices_told(measurement.server)
    if told is not None:
        return Devices(count=told, said_by="as the server says")
    return Devices(count=1, said_by="assumed, since nothing says how many: --devices does")

"""What serving costs: a price per device-hour in, cost per million tokens and per request that met the SLO out."""

import math
import re
import unicodedata

import msgspec

from netgain.errors import UsageError

BASIS = (
    "Paid are the seconds under the measured load, start-up and pauses left out; an idle device costs the same, so at a lower "
    "load each token costs more"
)
_MOST = 1e9  # per device-hour; beyond it somebody mistyped
_LEAST = 1e-9
_AMOUNT = r"(?P<amount>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_FORMS = (re.compile(_AMOUNT + r"\s*(?P<currency>\D*)"), re.compile(r"(?P<currency>\D+?)\s*" + _AMOUNT))


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Of one device for one hour. `currency` None: not said."""

    per_device_hour: float
    currency: str | None = None

    def __str__(self) -> str:
        unsaid = " (currency not said)" if self.currency is None else ""
        return f"{self.written(self.per_device_hour)} per device-hour{unsaid}"

    def written(self, amount: float | None) -> str:
        """An amount in this currency with at least three digits that count; "unknown" where there is none."""
        if amount is None:
            return "unknown"
        places = max(2, 2 - math.floor(math.log10(amount))) if amount > 0.0 else 2
        number = f"{amount:,.{places}f}"
        if self.currency is None:
            return number
        return f"{self.currency}{number}" if len(self.currency) == 1 else f"{number} {self.currency}"


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices are paid for (None: not known), and who says so, in words."""

    count: int | None
    said_by: str

    def __str__(self) -> str:
        number = (
            "an unknown number of devices" if self.count is None else f"{self.count} device{'s'[: self.count != 1]}"
        )
        return f"{number} ({self.said_by})"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What came within `seconds` under load; a mean rate times the seconds need not be whole. None: not known.

    `prompt_tokens` include those found in a cache. `met_slo`: requests that met it, `slo`: whether there is one."""

    seconds: float
    output_tokens: float | None
    prompt_tokens: float | None
    met_slo: float | None
    slo: bool


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one side cost. `paid`: price x devices x hours of `served`. Costs that are None are unknown: `unknown` says why."""

    price: Price
    devices: Devices
    served: Served
    paid: float | None
    per_million_output_tokens: float | None
    per_million_tokens: float | None
    per_request_within_slo: float | None
    unknown: tuple[str, ...] = ()


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate / baseline of each cost: below 1 the candidate is cheaper."""

    per_million_output_tokens: float | None
    per_million_tokens: float | None
    per_request_within_slo: float | None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides cost: totals over the run, which have no interval."""

    baseline: Cost
    candidate: Cost
    ratios: Ratios


def parse_price(text: str) -> Price:
    """Read `2.49`, `2.49USD`, `2.49 €` or `USD 2.49`. Raises UsageError."""
    found = next((match for form in _FORMS if (match := form.fullmatch(text.strip()))), None)
    currency = "" if found is None else found["currency"].strip()
    amount = math.nan if found is None else float(found["amount"])
    if not _LEAST <= amount <= _MOST or (currency and not _is_currency(currency)):
        raise UsageError(
            f"the price {text!r} is not understood: give a positive amount per device-hour, with or without a currency, such as "
            "2.49, 2.49USD or 2.49€"
        )
    return Price(per_device_hour=amount, currency=currency.upper() or None)


def cost(price: Price, devices: Devices, served: Served) -> Cost:
    """Paid is every device for the whole time, whatever it did."""
    paid = None
    if devices.count is not None and 0.0 < served.seconds < math.inf:
        paid = price.per_device_hour * devices.count * served.seconds / 3600.0
    every = None
    if served.output_tokens is not None and served.prompt_tokens is not None:
        every = served.output_tokens + served.prompt_tokens
    return Cost(
        price=price,
        devices=devices,
        served=served,
        paid=paid,
        per_million_output_tokens=_each(paid, served.output_tokens, 1e6),
        per_million_tokens=_each(paid, every, 1e6),
        per_request_within_slo=_each(paid, served.met_slo, 1.0),
        unknown=tuple(_unknown(devices, served)),
    )


def compared(baseline: Cost, candidate: Cost) -> Costs:
    """Both sides at one price."""
    return Costs(
        baseline=baseline,
        candidate=candidate,
        ratios=Ratios(
            per_million_output_tokens=_ratio(baseline.per_million_output_tokens, candidate.per_million_output_tokens),
            per_million_tokens=_ratio(baseline.per_million_tokens, candidate.per_million_tokens),
            per_request_within_slo=_ratio(baseline.per_request_within_slo, candidate.per_request_within_slo),
        ),
    )


def _is_currency(text: str) -> bool:
    """Three letters as in ISO 4217, or one currency sign."""
    if len(text) == 1:
        return unicodedata.category(text) == "Sc"
    return len(text) == 3 and text.isascii() and text.isalpha() and text.lower() not in ("nan", "inf")


def _each(paid: float | None, things: float | None, by: float) -> float | None:
    return None if paid is None or not things else paid / things * by


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else after / before


def _unknown(devices: Devices, served: Served) -> list[str]:
    said = []
    if devices.count is None:
        said.append("how many devices it has is not known")
    if not 0.0 < served.seconds < math.inf:
        said.append("no time under load was measured")
    if served.output_tokens is None:
        said.append("how many output tokens came is not known")
    elif not served.output_tokens:
        said.append("no output token came")
    elif served.prompt_tokens is None:
        said.append("how many prompt tokens were read is not known")
    if not served.slo:
        said.append("no SLO was given")
    elif served.met_slo is None:
        said.append("which requests met the SLO is not known")
    elif not served.met_slo:
        said.append("no request met the SLO")
    return said

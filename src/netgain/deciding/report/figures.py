"""How figures are written, the same way in HTML and in the terminal."""

import math


def ms(value: float | None) -> str:
    """Milliseconds with three sensible digits, or seconds from 10 s on."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "failed"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1e3:.1f} s"
    return (
        f"{value:.0f} ms"
        if size >= 100
        else f"{value:.1f} ms"
        if size >= 10
        else f"{value:.2f} ms"
        if size >= 0.005
        else "0 ms"
    )


def seconds(value: float | None) -> str:
    """A time in seconds, written in milliseconds where that reads better."""
    return ms(None if value is None else value * 1e3)


def times(value: float | None) -> str:
    """A ratio."""
    return "unknown" if value is None else f"{value:.2f}x"


def share(value: float | None, digits: int = 1) -> str:
    """A percentage without a sign."""
    return "unknown" if value is None else f"{value:.{digits}%}"


def signed_share(value: float | None) -> str:
    """A percentage with its sign."""
    return "unknown" if value is None else f"{value:+.1%}"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number."""
    return "unknown" if value is None else f"{value:.{digits}f}"


def chance(value: float) -> str:
    """A probability; one that rounds to nothing is not nothing."""
    return "< 0.001" if value < 0.0005 else f"{value:.3f}"


def size(value: float | None) -> str:
    """Bytes in MiB or GiB."""
    if value is None:
        return "unknown"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def rate(value: float | None, unit: str) -> str:
    """Billions of bytes or operations per second."""
    return "unknown" if value is None else f"{value / 1e9:.3g} {'GB/s' if unit == 'bytes' else 'GFLOP/s'}"


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step) + 1)]

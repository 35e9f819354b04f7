"""What a link costs, learned while it is used: latency and bandwidth from (bytes, seconds); and a link of given shape, to
measure over a sweep of links on a machine that has only one."""

from collections import Counter, deque

import msgspec
import numpy as np

_WINDOW = 64
_RARE, _RARE_WINDOW = 4, 256  # of a size that is rare among the last exchanges, so many are kept, as far back as that
_EMPTY_WINDOW = 16
_REFIT_EVERY = 8
_LEAST_SPREAD = 1.5  # of sizes, below which latency and bandwidth cannot be told apart
_CONTRADICTED, _NEAR = 2.0, 0.02  # a line is off so many times as far as another at the median sample, and so much more


class LinkFit(msgspec.Struct, frozen=True):
    """seconds = latency_s + bytes / bytes_per_s, the alpha-beta model. `bytes_per_s` is None while nothing but empty
    exchanges was seen. `error` is the median of |measured / predicted - 1| over the window: what a prediction is worth."""

    latency_s: float
    bytes_per_s: float | None
    error: float
    samples: int

    def predict_s(self, size: float) -> float | None:
        """Seconds for so many bytes; None where the bandwidth is not known."""
        if self.bytes_per_s is None:
            return None if size else self.latency_s
        return self.latency_s + size / self.bytes_per_s


class LinkEstimate:
    """Learns one direction of one link from its last 64 exchanges that moved something, and the last 16 that did not; older
    ones are forgotten, so it follows a link that changes, but for a few of sizes (within a factor of 2) that have become
    rare: without them latency could not be told from bandwidth any more. The line is Theil and Sen's (the median of all
    slopes), which bears outliers up to 29 % of the samples: of those far apart in size, and where that line is
    contradicted by most samples, of all. (Of exchanges that are nearly all alike in size, a single one of another size is
    in every far pair, and one that came late would tell the bandwidth alone.)

    Where all sizes are alike, latency and bandwidth cannot be told apart: then all time is charged to the bytes, after
    what empty exchanges took. So it is where no line agrees with most samples and that does.
    """

    def __init__(self) -> None:
        self._moved: deque[tuple[float, float]] = deque(maxlen=_RARE_WINDOW)
        self._empty: deque[float] = deque(maxlen=_EMPTY_WINDOW)  # apart, so that misses never displace the bandwidth
        self._fit: LinkFit | None = None
        self._since_fit = 0

    def add(self, size: int, seconds: float) -> None:
        """An exchange of `size` bytes took `seconds`; one that moved nothing tells the latency."""
        if size:
            self._moved.append((float(size), seconds))
        else:
            self._empty.append(seconds)
        self._since_fit += 1

    def fit(self) -> LinkFit | None:
        """The estimate now; None before the first exchange."""
        if self._since_fit >= _REFIT_EVERY or (self._since_fit and len(self._moved) <= _REFIT_EVERY):
            self._fit = _fit(np.array(self._telling()).reshape(-1, 2), np.array(self._empty))
            self._since_fit = 0
        return self._fit

    def _telling(self) -> list[tuple[float, float]]:
        """The last exchanges, and older ones of rare sizes."""
        kept: list[tuple[float, float]] = []
        of_size: Counter[int] = Counter()
        for number, one in enumerate(reversed(self._moved)):
            alike = int(one[0]).bit_length()
            if number < _WINDOW or of_size[alike] < _RARE:
                of_size[alike] += 1
                kept.append(one)
        return kept


def _fit(moved: np.ndarray, empty: np.ndarray) -> LinkFit:
    floor_s = float(np.median(empty)) if len(empty) else 0.0
    if not len(moved):
        return LinkFit(floor_s, None, _error(empty, np.full_like(empty, floor_s)), len(empty))
    sizes, seconds = moved[:, 0], moved[:, 1]
    fits = [*_lines(sizes, seconds), _charged_to_bytes(sizes, seconds, floor_s)]
    least = min(fit.error for fit in fits)
    return next(fit for fit in fits if fit.error <= _CONTRADICTED * least + _NEAR)


def _lines(sizes: np.ndarray, seconds: np.ndarray) -> list[LinkFit]:
    """Through exchanges of different sizes: by pairs far apart, which tell the bandwidth best, and by all pairs."""
    smallest, largest = sizes.min(), sizes.max()
    if largest < _LEAST_SPREAD * smallest:
        return []
    first, second = np.triu_indices(len(sizes), 1)
    gap = sizes[second] - sizes[first]
    lines = []
    for least_gap in ((largest - smallest) / 4, (_LEAST_SPREAD - 1) * smallest):
        apart = np.abs(gap) >= least_gap
        slope = float(np.median((seconds[second] - seconds[first])[apart] / gap[apart]))
        if slope > 0:
            latency_s = max(0.0, float(np.median(seconds - sizes * slope)))
            lines.append(LinkFit(latency_s, 1 / slope, _error(seconds, latency_s + sizes * slope), len(sizes)))
    return lines


def _charged_to_bytes(sizes: np.ndarray, seconds: np.ndarray, floor_s: float) -> LinkFit:
    latency_s = min(floor_s, float(seconds.min()) / 2)
    rate = 1 / max(float(np.median((seconds - latency_s) / sizes)), 1e-15)
    return LinkFit(latency_s, rate, _error(seconds, latency_s + sizes / rate), len(sizes))


def _error(measured: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.median(np.abs(measured / np.maximum(predicted, 1e-12) - 1)))


class ShapedLink:
    """A link of `bytes_per_s` and `latency_s` through which exchanges pass one after the other. Sans I/O: says when the last
    byte arrives. `burst_bytes` is a token bucket's depth: after idling, that much passes at once."""

    def __init__(self, latency_s: float, bytes_per_s: float, burst_bytes: float = 0.0) -> None:
        if latency_s < 0 or bytes_per_s <= 0 or burst_bytes < 0:
            raise ValueError(f"no link has latency {latency_s} s, {bytes_per_s} bytes/s and burst {burst_bytes} bytes")
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_bytes / bytes_per_s
        self._free_at_s = float("-inf")

    def arrives_s(self, now_s: float, size: int) -> float:
        """When `size` bytes that are sent at `now_s` are there; the link is busy with them until then."""
        self._free_at_s = max(self._free_at_s, now_s - self._burst_s) + size / self.bytes_per_s
        return max(self._free_at_s, now_s) + self.latency_s

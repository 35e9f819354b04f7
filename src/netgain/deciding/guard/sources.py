"""Where each engine's own metrics tell what a rollback rule asks, and how that differs from what the client measured.

A ratio of counters is a mean and exact; a histogram's percentile is only as fine as its buckets.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from netgain.measuring.observe.names import MEANINGS, Engine
from netgain.measuring.observe.window import ServerWindow

Part = Literal["sum", "count", "gained"]


class Term(msgspec.Struct, frozen=True):
    """A number that a window gained: a histogram's sum or count, or a counter."""

    name: str
    part: Part

    def of(self, window: ServerWindow) -> float | None:
        if self.part == "gained":
            return window.gained(self.name)
        delta = window.histograms.get(self.name)
        return None if delta is None else delta.sum if self.part == "sum" else delta.count

    @property
    def series(self) -> str:
        """Its name in PromQL."""
        return self.name if self.part == "gained" else f"{self.name}_{self.part}"


class PaceSource(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over tokens: the mean time per output token after the first. `less`: tokens that are not after the first."""

    seconds: Term
    tokens: Term
    less: Term | None = None
    differs: str

    def of(self, window: ServerWindow) -> float | None:
        """None without tokens, or where one of the numbers is not there."""
        seconds, tokens = self.seconds.of(window), self.tokens.of(window)
        less = 0.0 if self.less is None else self.less.of(window)
        if seconds is None or tokens is None or less is None or tokens - less <= 0.0:
            return None
        return seconds / (tokens - less)


def _histogram(name: str, differs: str) -> PaceSource:
    return PaceSource(seconds=Term(name, "sum"), tokens=Term(name, "count"), differs=differs)


PACES: Mapping[Engine, tuple[PaceSource, ...]] = {
    "netgain": (
        _histogram(
            "netgain_itl_seconds",
            "the server stamps tokens as it sends them: the way to the client is not in it, streams of all clients are",
        ),
    ),
    "vllm": (
        PaceSource(  # not inter_token_latency: that counts a step once, however many tokens a step of speculation commits
            seconds=Term("vllm:request_decode_time_seconds", "sum"),
            tokens=Term("vllm:request_generation_tokens", "sum"),
            less=Term("vllm:request_generation_tokens", "count"),
            differs="the engine's own time from the first token to the last of ended requests, without its HTTP server",
        ),
    ),
    "sglang": tuple(
        _histogram(name, "the tokenizer process's time between outputs over their tokens, without its HTTP server")
        for name in (
            "sglang:inter_token_latency_seconds",
            "sglang:time_per_output_token_seconds",
            "sglang_inter_token_latency_seconds",
        )
    ),
    "llama.cpp": (
        PaceSource(
            seconds=Term("llamacpp:tokens_predicted_seconds_total", "gained"),
            tokens=Term("llamacpp:tokens_predicted_total", "gained"),
            differs="the slots' own time over all their output tokens, the first included, without HTTP",
        ),
    ),
}


# a histogram of gaps that counts a step once, however many tokens it commits -> the counter of the steps that verified drafts:
# its percentiles are a client's per token only while that stands still
GAPS_BY_STEP: Mapping[Engine, str] = {"vllm": "vllm:spec_decode_num_drafts_total"}


def gaps_are_steps(engine: Engine, window: ServerWindow) -> bool:
    """Whether the engine's gaps between tokens were, in this window, gaps between steps that commit several."""
    counter = GAPS_BY_STEP.get(engine)
    return counter is not None and bool(window.gained(counter))


def pace_source(engine: Engine, window: ServerWindow) -> PaceSource | None:
    """The first of the engine's sources whose names are all there."""
    for source in PACES[engine]:
        if all(_there(term, window) for term in (source.seconds, source.tokens, source.less) if term is not None):
            return source
    return None


def tried(engine: Engine) -> str:
    """The names that were looked for, in words."""
    return " or ".join(f"{source.seconds.series} / {source.tokens.series}" for source in PACES[engine])


def histogram_names(engine: Engine, metric: str) -> tuple[str, ...]:
    """The engine's names for `ttft`, `itl` or `e2e`, newest first; empty where it has none."""
    meaning = MEANINGS.get(metric)
    names = () if meaning is None or meaning.role != "histogram" else meaning.names.get(engine, ())
    return (*names, *(name.replace("sglang:", "sglang_") for name in names if engine == "sglang"))


def _there(term: Term, window: ServerWindow) -> bool:
    return term.name in (window.counters if term.part == "gained" else window.histograms)

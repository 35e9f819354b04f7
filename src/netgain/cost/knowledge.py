"""Fetch knowledge with each question (RAG) or keep it cached (CAG): tokens, price of a managed API, time when self-served.

The two cost models answer different questions and are never mixed: an API sells tokens, cached ones at another price; a
server of one's own pays in time, memory and bytes moved.
"""

import math

import msgspec

from netgain.errors import UsageError


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a request holds, in tokens. `system` is cached in either form; `knowledge` is everything that CAG caches."""

    system: float
    chunks: float
    chunk: float
    question: float
    knowledge: float

    @property
    def rag_prefill(self) -> float:
        """chunks x chunk + question: what retrieval adds is prefilled for each request."""
        return self.chunks * self.chunk + self.question

    @property
    def cag_cached(self) -> float:
        return self.knowledge + self.system


def prefill_ratio(shape: Shape) -> float:
    """CAG's tokens to prefill over RAG's. It is no ratio of TTFT: attention over the cache and its loading cost time."""
    if shape.rag_prefill <= 0.0:
        raise UsageError("a request without a chunk and without a question has nothing to prefill")
    return shape.question / shape.rag_prefill


def rag_price(shape: Shape, cached: float, fresh: float, retrieval: float) -> float:
    """Price of one RAG request at prices per million tokens: (system Cc + prefill Cp) / 1e6 + R."""
    return (shape.system * cached + shape.rag_prefill * fresh) / 1e6 + retrieval


def cag_price(shape: Shape, cached: float, fresh: float, storage: float) -> float:
    """Price of one CAG request: ((knowledge + system) Cc + question Cp) / 1e6 + S, S being storage per request."""
    return (shape.cag_cached * cached + shape.question * fresh) / 1e6 + storage


def break_even_discount(shape: Shape) -> float:
    """Cached price over fresh price below which CAG is the cheaper one, with R = S; 0 when it never is."""
    extra = shape.cag_cached - shape.system
    return max(0.0, (shape.rag_prefill - shape.question) / extra) if extra > 0.0 else math.inf


def rag_s(shape: Shape, retrieval_s: float, prefill_per_s: float) -> float:
    """Time to the first token of RAG: retrieval (search, rerank) and the prefill of chunks and question."""
    return retrieval_s + _prefill_s(shape.rag_prefill, prefill_per_s)


def cag_s(shape: Shape, build_s: float, reuse: float, load_s: float, prefill_per_s: float) -> float:
    """Time per request of CAG: the build shared by the requests that use it before it is invalidated, loading, suffix."""
    if reuse <= 0.0:
        raise UsageError(f"a cache that is used {reuse:g} times is never worth building; give the requests per build")
    return build_s / reuse + load_s + _prefill_s(shape.question, prefill_per_s)


def break_even_reuse(shape: Shape, build_s: float, load_s: float, retrieval_s: float, prefill_per_s: float) -> float:
    """Requests per build from which CAG takes less time than RAG; infinite when a hit alone is slower."""
    saved = rag_s(shape, retrieval_s, prefill_per_s) - load_s - _prefill_s(shape.question, prefill_per_s)
    return build_s / saved if saved > 0.0 else math.inf


def _prefill_s(tokens: float, per_s: float) -> float:
    if tokens == 0.0:
        return 0.0
    if per_s <= 0.0:
        raise UsageError(f"a prefill of {per_s:g} tokens/s never ends; give the measured rate")
    return tokens / per_s

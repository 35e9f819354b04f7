"""Questions about knowledge: retrieved with each request (RAG) or kept cached (CAG)."""

from typing import Annotated

import typer

from netgain.cli.calc_show import NONE, AsJson, Line, answer
from netgain.cost import knowledge
from netgain.cost.kv import transfer_s
from netgain.cost.quantity import Quantity, amount, bandwidth, duration, money, size, write_time
from netgain.errors import UsageError

_TOKENS = Quantity(500.0, "500")
_CHUNKS = Quantity(10.0, "10")
_CAG = "arithmetic of prompt tokens; CAG as in arXiv 2412.15605 (Don't Do RAG)"

System = Annotated[
    Quantity, typer.Option("--system", parser=amount, help="Tokens of the system prompt, cached in both.")
]
Chunks = Annotated[Quantity, typer.Option("--chunks", parser=amount, help="Chunks retrieved per request.")]
Chunk = Annotated[Quantity, typer.Option("--chunk", parser=amount, help="Tokens per chunk.")]
Question = Annotated[Quantity, typer.Option("--question", parser=amount, help="Tokens of the question.")]
Knowledge = Annotated[Quantity, typer.Option("--knowledge", parser=amount, help="Tokens of everything CAG caches.")]


def price(
    knowledge_tokens: Knowledge,
    fresh: Annotated[Quantity, typer.Option(parser=money, help="Price of a million prompt tokens.")],
    cached: Annotated[Quantity, typer.Option(parser=money, help="Price of a million cached prompt tokens.")],
    system: System = _TOKENS,
    chunks: Chunks = _CHUNKS,
    chunk: Chunk = _TOKENS,
    question: Question = _TOKENS,
    retrieval: Annotated[Quantity, typer.Option(parser=money, help="Price of one retrieval.")] = NONE,
    storage: Annotated[Quantity, typer.Option(parser=money, help="Price of keeping the cache, per request.")] = NONE,
    json: AsJson = False,
) -> None:
    """Price per request at an API that sells tokens. Says nothing of a server of one's own (rag-cag-time)."""
    shape = _shape(system, chunks, chunk, question, knowledge_tokens)
    rag = knowledge.rag_price(shape, cached.value, fresh.value, retrieval.value)
    cag = knowledge.cag_price(shape, cached.value, fresh.value, storage.value)
    lines = [
        Line(
            name="RAG per request",
            value=rag,
            unit="",
            formula="(system x cached price + (chunks x chunk + question) x price) / 1e6 + retrieval",
            numbers=f"({system} x {cached} + ({chunks} x {chunk} + {question}) x {fresh}) / 1e6 + {retrieval}",
        ),
        Line(
            name="CAG per request",
            value=cag,
            unit="",
            formula="((knowledge + system) x cached price + question x price) / 1e6 + storage",
            numbers=f"(({knowledge_tokens} + {system}) x {cached} + {question} x {fresh}) / 1e6 + {storage}",
        ),
        _tokens(shape, question, chunks, chunk),
        Line(
            name="discount on cached tokens from which CAG is the cheaper",
            value=knowledge.break_even_discount(shape),
            unit="share",
            formula="chunks x chunk / knowledge, as cached price / price, if retrieval and storage cost the same",
            numbers=f"{chunks} x {chunk} / {knowledge_tokens}",
        ),
    ]
    cheaper = "cost the same" if rag == cag else f"{'RAG' if rag < cag else 'CAG'} is the cheaper"
    says = [f"{'RAG and CAG ' if rag == cag else ''}{cheaper} at these prices."]
    answer(lines, _CAG, says, json)


def time(
    knowledge_tokens: Knowledge,
    prefill: Annotated[Quantity, typer.Option(parser=amount, help="Prefill of the server, tokens per second.")],
    reuse: Annotated[Quantity, typer.Option(parser=amount, help="Requests per build, until it is invalidated.")],
    retrieval: Annotated[Quantity, typer.Option(parser=duration, help="Embed, search and rerank.")] = NONE,
    kv_bytes: Annotated[
        Quantity | None, typer.Option("--kv", parser=size, help="KV of the knowledge, if a hit has to load it.")
    ] = None,
    link: Annotated[
        Quantity | None, typer.Option("--bandwidth", parser=bandwidth, help="Effective bandwidth of that load.")
    ] = None,
    build: Annotated[
        Quantity | None, typer.Option(parser=duration, help="Building the cache; by default its prefill.")
    ] = None,
    system: System = _TOKENS,
    chunks: Chunks = _CHUNKS,
    chunk: Chunk = _TOKENS,
    question: Question = _TOKENS,
    json: AsJson = False,
) -> None:
    """Time to the first token on a server of one's own, the cache's build shared by the requests that use it."""
    if (kv_bytes is None) != (link is None):
        raise UsageError("--kv and --bandwidth tell together how long a load takes; give both or none")
    shape = _shape(system, chunks, chunk, question, knowledge_tokens)
    load_s = 0.0 if kv_bytes is None or link is None else transfer_s(kv_bytes.value, link.value)
    build_s = build.value if build is not None else _build_s(shape, prefill)
    lines = [
        Line(
            name="RAG per request",
            value=knowledge.rag_s(shape, retrieval.value, prefill.value),
            unit="s",
            formula="retrieval + (chunks x chunk + question) / prefill rate",
            numbers=f"{retrieval} + ({chunks} x {chunk} + {question}) / {prefill}",
        ),
        Line(
            name="CAG per request",
            value=knowledge.cag_s(shape, build_s, reuse.value, load_s, prefill.value),
            unit="s",
            formula="build / reuse + load + question / prefill rate",
            numbers=f"{write_time(build_s)} / {reuse} + {write_time(load_s)} + {question} / {prefill}",
        ),
        Line(
            name="requests per build from which CAG takes less",
            value=knowledge.break_even_reuse(shape, build_s, load_s, retrieval.value, prefill.value),
            unit="",
            formula="build / (RAG per request - load - question / prefill rate)",
            numbers="",
        ),
        _tokens(shape, question, chunks, chunk),
    ]
    answer(lines, _CAG, ["Attention over a long cache also slows each decoded token; that is not in here."], json)


def _build_s(shape: knowledge.Shape, prefill: Quantity) -> float:
    """The prefill of everything cached, at the same rate; quadratic attention makes a long one slower than this."""
    whole = knowledge.Shape(system=0.0, chunks=0.0, chunk=0.0, question=shape.cag_cached, knowledge=0.0)
    return knowledge.rag_s(whole, 0.0, prefill.value)


def _tokens(shape: knowledge.Shape, question: Quantity, chunks: Quantity, chunk: Quantity) -> Line:
    return Line(
        name="tokens CAG prefills, of RAG's",
        value=knowledge.prefill_ratio(shape),
        unit="share",
        formula="question / (chunks x chunk + question); the ratio of TTFT is another",
        numbers=f"{question} / ({chunks} x {chunk} + {question})",
    )


def _shape(system: Quantity, chunks: Quantity, chunk: Quantity, question: Quantity, whole: Quantity) -> knowledge.Shape:
    return knowledge.Shape(
        system=system.value,
        chunks=chunks.value,
        chunk=chunk.value,
        question=question.value,
        knowledge=whole.value,
    )

"""What a request may need before it can be submitted, done while the step loop goes on: its grammar compiled, its chunks fetched,
its tenant's key made."""

import asyncio

from netgain.serving.blocks.keys import KeyChain
from netgain.serving.engine.admission import constraint_of, stop_ids_of
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.grammar import Grammars
from netgain.serving.engine.protocols import ChunkSource
from netgain.serving.engine.request import Request
from netgain.serving.engine.sequence import sequence_of
from netgain.serving.engine.tiering import Tiering


def generation_of(
    request: Request, root: bytes, block_tokens: int, eos_ids: frozenset[int], grammars: Grammars | None
) -> Generation:
    """The request as the engine keeps it, `root` being that of its keys. Raises RequestRejected for a grammar that is
    none."""
    chain = KeyChain(root, block_tokens)
    chain.extend(request.prompt)
    sequence = sequence_of(request, chain.keys, block_tokens)
    stop_ids = stop_ids_of(request, eos_ids)
    return Generation(request, sequence, chain, stop_ids, constraint_of(request, stop_ids, grammars))


def must_prepare(request: Request, grammars: Grammars | None, chunks: ChunkSource | None) -> bool:
    """Whether a grammar has to be compiled, or chunks could be fetched."""
    grammar = request.sampling.grammar
    if grammar is not None and grammars is not None and not grammars.known(grammar):
        return True
    return request.chunks is not None and chunks is not None and chunks.lacks(request)


async def prepare(
    request: Request, grammars: Grammars | None, chunks: ChunkSource | None, tiering: Tiering | None
) -> None:
    """Do all of it, each on a thread. Raises RequestRejected for a grammar that is none."""
    if tiering is not None and tiering.envelope.lacks(request.salt):
        await asyncio.to_thread(tiering.envelope.make_ready, request.salt)
    if request.sampling.grammar is not None and grammars is not None:
        await grammars.prepare(request.sampling.grammar)
    if request.chunks is not None and chunks is not None:
        await chunks.fetch(request)

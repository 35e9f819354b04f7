"""What a request says of chunks in its prompt, and what became of them."""

from array import array
from collections.abc import Sequence

import msgspec

from netgain.ledger.records import BlendCounts
from netgain.serving.tiers.blending.selection import Selection

_EDGE = 2  # tokens at either end of a chunk that may be other ones where text stands beside it


class Chunks(msgspec.Struct, frozen=True, kw_only=True):
    """`spans` (first position, position behind the last) of chunks in a prompt, ascending and apart; `selection` None leaves
    it to the engine, which takes what was calibrated for its model."""

    spans: tuple[tuple[int, int], ...]
    selection: Selection | None = None

    def check(self, prompt_tokens: int) -> str | None:
        """What is wrong with the spans in a prompt of so many tokens; None: nothing."""
        behind = 0
        for first, end in self.spans:
            if not behind <= first < end <= prompt_tokens:
                return (
                    f"the chunk at positions {first} to {end} does not lie behind {behind} and within the "
                    f"{prompt_tokens} tokens of the prompt"
                )
            behind = end
        return None


def find_spans(prompt: Sequence[int], chunks: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Where chunks, tokenised by themselves, stand in a prompt that was tokenised whole, so that the prompt's tokens do not
    depend on how it is cut. Up to two tokens at either end of a chunk may be other ones there, by what stands beside it; they
    are left out. A chunk that is given twice is looked for twice.

    Raises ValueError, with the number of the chunk first, for one that is not there.
    """
    text = array("I", prompt).tobytes()
    taken: list[tuple[int, int]] = []
    for number, chunk in enumerate(chunks):
        span = _find(text, chunk, taken)
        if span is None:
            raise ValueError(f"{number}: its {len(chunk)} tokens do not stand in the prompt, or overlap another chunk")
        taken.append(span)
    return tuple(sorted(taken))


def _find(text: bytes, chunk: Sequence[int], taken: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    cuts = sorted(((left, right) for left in range(_EDGE + 1) for right in range(_EDGE + 1)), key=sum)
    for left, right in cuts:
        wanted = array("I", chunk[left : len(chunk) - right]).tobytes()
        at = text.find(wanted) if wanted else -1
        while at >= 0:
            first, end = at // 4, (at + len(wanted)) // 4
            if at % 4 == 0 and all(end <= other or behind <= first for other, behind in taken):
                return first, end
            at = text.find(wanted, at + 1)
    return None


def counts(
    selection: Selection,
    chunks: int,
    chunk_tokens: int,
    recomputed: float,
    computed_alone: int,
    found: int = 0,
    rotation_s: float = 0.0,
    alone_s: float = 0.0,
) -> BlendCounts:
    """For the record of the request, or of a piece of its prompt (but for `chunks`, which are those of all)."""
    return BlendCounts(
        selection=str(selection),
        lossy=not selection.exact,
        chunks=chunks,
        chunk_tokens=chunk_tokens,
        recomputed_tokens=recomputed,
        computed_alone_tokens=computed_alone,
        chunks_found=found,
        rotation_s=rotation_s,
        alone_s=alone_s,
    )


def added(before: BlendCounts | None, piece: BlendCounts) -> BlendCounts:
    """What became of the pieces so far."""
    if before is None:
        return piece
    names = ("chunk_tokens", "recomputed_tokens", "computed_alone_tokens", "chunks_found", "rotation_s", "alone_s")
    sums = {name: getattr(before, name) + getattr(piece, name) for name in names}
    return msgspec.structs.replace(piece, **sums)

"""How many tokens each chunk carried. One rule per request, chosen by what the server said, and named in the record."""

from collections.abc import Sequence

import msgspec

from netgain.measuring.client.record import TokensSource


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One chunk as it came: when, how much generated text of any channel, the answer's part of it, the running count."""

    at_s: float
    text_length: int
    answer_length: int
    running_tokens: int | None


class TokenCount(msgspec.Struct, frozen=True):
    """The chunks that carried tokens, in order. All empty or None when no token came."""

    times_s: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    total: int | None = None
    source: TokensSource | None = None
    first_text_s: float | None = None


def count_tokens(arrivals: Sequence[Arrival], final_total: int | None, recounted: int | None = None) -> TokenCount:
    """Attribute tokens to chunks.

    `arrivals`: the chunks with choices, in order. `final_total`: the last count the server gave, in whatever chunk.
    `recounted`: tokens of the whole output by the client's own tokenizer, used only when the server gave no count.
    With a running count on every chunk that has text, a chunk carries what the count rose by (also when its text is
    empty: half a character, an end token). Else a chunk with text carries at least one token, the first exactly one,
    and the rest of the total is spread over the later ones by length of text.
    """
    textual = [arrival for arrival in arrivals if arrival.text_length]
    first_text_s = next((arrival.at_s for arrival in arrivals if arrival.answer_length), None)
    running = [arrival for arrival in arrivals if arrival.running_tokens is not None]
    if running and all(arrival.running_tokens is not None for arrival in textual) and running[-1].running_tokens:
        times: list[float] = []
        tokens: list[int] = []
        so_far = 0
        for arrival in running:
            rise = max(0, (arrival.running_tokens or 0) - so_far)
            so_far += rise
            if rise or arrival.text_length:
                times.append(arrival.at_s)
                tokens.append(rise)
        if final_total is not None and final_total > so_far and tokens:
            tokens[-1] += final_total - so_far  # tokens that no chunk showed, such as the end token
            so_far = final_total
        return TokenCount(tuple(times), tuple(tokens), so_far, "usage", first_text_s)
    if not textual:
        total = final_total if final_total is not None else recounted
        return TokenCount(
            (), (), total, None if total is None else "total" if final_total is not None else "text", None
        )
    total, source = _total(len(textual), final_total, recounted)
    spread = _spread(total, [arrival.text_length for arrival in textual])
    return TokenCount(tuple(arrival.at_s for arrival in textual), spread, total, source, first_text_s)


def _total(chunks: int, final_total: int | None, recounted: int | None) -> tuple[int, TokensSource]:
    if final_total:
        return final_total, "total"
    if recounted:
        return recounted, "text"
    return chunks, "chunks"


def _spread(total: int, lengths: list[int]) -> tuple[int, ...]:
    """Integers that add up to `total`: 1 for the first chunk, the rest by length (largest remainder), 1 each if enough."""
    if len(lengths) == 1:
        return (total,)
    later = lengths[1:]
    if total - 1 < len(later):  # fewer tokens than chunks: the server splits tokens
        return (1, *(1 if place < total - 1 else 0 for place in range(len(later))))
    spare = total - 1 - len(later)
    shares = [spare * length / sum(later) for length in later]
    parts = [int(share) for share in shares]
    by_remainder = sorted(range(len(later)), key=lambda place: (parts[place] - shares[place], place))
    for place in by_remainder[: spare - sum(parts)]:
        parts[place] += 1
    return (1, *(1 + part for part in parts))

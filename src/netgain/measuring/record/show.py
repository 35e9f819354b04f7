"""The summary of a recording as lines for a terminal."""

from collections.abc import Iterator

from netgain.measuring.record.summary import Spread, Summary
from netgain.wording import count


def show(found: Summary, asked_usage: bool = False) -> Iterator[str]:
    """What is not known is said to be so. `asked_usage`: streams were asked for their counts, so that asking is no mend."""
    lost = f", {found.lost} lost" if found.lost else ""
    bad = f", {count(found.unreadable, 'line')} unreadable" if found.unreadable else ""
    yield f"{count(found.requests, 'request')}, {found.failed} failed{lost}{bad}"
    if found.rate_per_s is None:
        yield "rate          unknown"
    else:
        yield f"rate          {found.rate_per_s:.3g} requests/s over {found.window_s:.1f} s"
    if found.mean_in_flight is None:
        yield "in flight     unknown"
    else:
        yield f"in flight     {found.mean_in_flight:.2f} on average, {found.most_in_flight} at most"
    yield f"prompt        {_spread(found.prompt_tokens, found.requests, 'tokens')}"
    yield f"output        {_spread(found.output_tokens, found.requests, 'tokens')}"
    if found.uncounted_streams:
        mend = "though they were asked for" if asked_usage else "netgain record --ask-usage asks for them"
        streams = count(found.uncounted_streams, "stream")
        yield f"              {streams} gave no counts: {mend}"
    yield f"first token   {_spread(found.first_token_s, found.requests, 's')}"
    yield f"whole answer  {_spread(found.ended_s, found.requests, 's')}"
    if found.copied is not None:
        yield f"copied words  {_spread(found.copied, found.requests, 'of an answer')}"
    if not found.reuse:
        yield "prefix reuse  unknown: nothing is known of the prompts' blocks"
        return
    yield f"prefix reuse  an LRU cache would hold, in blocks of {found.block_size} {found.block_unit}:"
    for point in found.reuse:
        size = "without a limit" if point.blocks is None else f"{point.blocks} blocks"
        yield f"  {size:>16}  {point.hit_rate:6.1%} of the prompts' blocks"


def _spread(found: Spread | None, requests: int, unit: str) -> str:
    if found is None:
        return "unknown"
    partly = "" if found.known == requests else f" (known of {found.known} of {requests})"
    return f"p50 {found.p50:.4g}, p95 {found.p95:.4g}, most {found.most:.4g} {unit}{partly}"

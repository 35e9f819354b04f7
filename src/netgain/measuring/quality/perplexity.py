"""Perplexity of given texts: the exponential of the mean negative log-probability of their tokens."""

import math
from collections.abc import Sequence

import msgspec

from netgain.measuring.quality.estimates import Estimate, exponential, mean_over_texts
from netgain.measuring.quality.teacher_forcing import Scored


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """`perplexity` per token, over all texts and by category. `bits_per_byte` compares models of different tokenizers; it
    counts every byte of the texts, though the first token has no probability where a model has no start token. None where
    texts were given as token ids, or scored in part."""

    perplexity: Estimate
    bits_per_byte: float | None
    by_category: dict[str, Estimate]


def perplexity_of(scored: Sequence[Scored]) -> Perplexity | None:
    """None when nothing was scored."""
    losses = {one.text.name: [-law.logprob for law in one.laws] for one in scored}
    overall = mean_over_texts(list(losses.values()))
    if overall is None:
        return None
    sizes = [None if one.partial else one.text.size_bytes for one in scored]
    known = [size for size in sizes if size is not None]
    spent = math.fsum(math.fsum(text) for text in losses.values())
    by_category = {}
    for category in dict.fromkeys(one.text.category for one in scored):
        own = mean_over_texts([losses[one.text.name] for one in scored if one.text.category == category])
        if own is not None:
            by_category[category] = _at_least_one(own)
    return Perplexity(
        perplexity=_at_least_one(overall),
        bits_per_byte=spent / math.log(2.0) / sum(known) if known and len(known) == len(sizes) else None,
        by_category=by_category,
    )


def _at_least_one(loss: Estimate) -> Estimate:
    """The perplexity of a mean loss. No loss is below 0, so the interval of a few texts does not begin below 1."""
    found = exponential(loss)
    return found if found.low is None else msgspec.structs.replace(found, low=max(1.0, found.low))

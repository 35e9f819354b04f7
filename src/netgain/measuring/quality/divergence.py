"""How far the laws of two servers lie apart at the same positions of the same texts: KL divergence, perplexity, first choice."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from netgain.measuring.quality.estimates import Estimate, exponential, mean_over_texts
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.teacher_forcing import Scored

_TINY = 1e-6  # below it the rest of a law is the rounding of what servers tell; a larger rest of q only lowers KL


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate's law against the baseline's, in nats per position where not said otherwise.

    `kl` is KL(baseline || candidate) as far as it can be seen: servers tell the most likely tokens only, so all others are
    merged into one. Merging can only lower KL, so this is an exact lower bound; `unseen` is the mean probability that the
    baseline gives to what was merged, and where it is 0 the bound is KL itself. `perplexity_ratio` is the candidate's
    perplexity over the baseline's. `same_first` is the share of positions with the same most likely token. `other_tokens`
    names texts that the two servers cut into different tokens; they are left out.
    """

    kl: Estimate
    kl_p99: float
    kl_largest: float
    unseen: float
    perplexity_ratio: Estimate
    same_first: Estimate
    top: int
    other_tokens: tuple[str, ...]


def divergence(baseline: Sequence[Scored], candidate: Sequence[Scored], top: int) -> Divergence | str:
    """Compare texts that both scored; a sentence when there is none. `top` is how many tokens per position were asked for."""
    theirs = {one.text.name: one for one in candidate}
    pairs = [(one, theirs[one.text.name]) for one in baseline if one.text.name in theirs]
    if not pairs:
        return "no text was scored by both servers"
    same = [(left, right) for left, right in pairs if left.tokens == right.tokens and len(left.laws) == len(right.laws)]
    others = tuple(left.text.name for left, right in pairs if left.tokens != right.tokens)
    if not same:
        return f"the servers cut all {len(pairs)} texts into different tokens, so positions cannot be compared; bits per byte can"
    kls: list[list[float]] = []
    unseen: list[list[float]] = []
    ratios: list[list[float]] = []
    firsts: list[list[float]] = []
    for left, right in same:
        found = [bounded_kl(p, q) for p, q in zip(left.laws, right.laws, strict=True)]
        kls.append([kl for kl, _ in found])
        unseen.append([rest for _, rest in found])
        ratios.append([p.logprob - q.logprob for p, q in zip(left.laws, right.laws, strict=True)])
        firsts.append([float(bool(p.likeliest & q.likeliest)) for p, q in zip(left.laws, right.laws, strict=True)])
    kl, ratio, first = mean_over_texts(kls), mean_over_texts(ratios), mean_over_texts(firsts)
    assert kl is not None
    assert ratio is not None
    assert first is not None
    every = np.concatenate([np.asarray(text) for text in kls])
    return Divergence(
        kl=kl,
        kl_p99=float(np.quantile(every, 0.99, method="higher")),
        kl_largest=float(every.max()),
        unseen=float(np.concatenate([np.asarray(text) for text in unseen]).mean()),
        perplexity_ratio=exponential(ratio),
        same_first=first,
        top=top,
        other_tokens=others,
    )


def bounded_kl(p: Law, q: Law) -> tuple[float, float]:
    """(KL(p || q) with all tokens merged that not both laws show, p's probability of the merged ones).

    Never above the true KL (data-processing inequality), never below 0.
    """
    both = [token for token in p.top if token in q.top]
    rest_p = 1.0 - math.fsum(math.exp(p.top[token]) for token in both)
    rest_q = 1.0 - math.fsum(math.exp(q.top[token]) for token in both)
    kl = math.fsum(math.exp(p.top[token]) * (p.top[token] - q.top[token]) for token in both)
    if rest_p > 0.0:
        kl += rest_p * math.log(rest_p / max(rest_q, _TINY))
    return max(0.0, kl), max(0.0, rest_p)

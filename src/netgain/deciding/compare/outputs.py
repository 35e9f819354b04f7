"""What the answers say about a comparison of speed: their lengths, which a time to the end depends on, and whether both arms
answer alike."""

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from netgain.deciding.experiment.analyse import per_token
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, pair
from netgain.deciding.experiment.statistics import median_effect
from netgain.deciding.experiment.unpaired import median_effect_apart, samples
from netgain.deciding.experiment.verdict import finding

LENGTH_NOTICE = 0.01


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Mean output tokens per answered request of both arms, of prompts that both answered where prompts are paired."""

    baseline: float
    candidate: float

    @property
    def longer(self) -> float:
        """How much longer the candidate's answers are: 0.1 = 10 %."""
        return self.candidate / self.baseline - 1.0


def lengths(observations: Sequence[Observation], paired: bool) -> Lengths | None:
    """None where a count is unknown in every pair, or an arm answered nothing."""
    counts: dict[str, dict[tuple[int, str], list[int]]] = {BASELINE: defaultdict(list), CANDIDATE: defaultdict(list)}
    for seen in observations:
        if seen.arm in counts and seen.record.ok and seen.record.output_tokens:
            key = seen.key if paired else (0, "")
            counts[seen.arm][key].append(seen.record.output_tokens)
    keys = [key for key in counts[BASELINE] if key in counts[CANDIDATE]]
    if not keys:
        return None
    means = [float(np.mean([np.mean(counts[arm][key]) for key in keys])) for arm in (BASELINE, CANDIDATE)]
    return Lengths(baseline=means[0], candidate=means[1])


def length_doubt(
    observations: Sequence[Observation], found: Lengths | None, paired: bool, minimum_effect: float, seed: int
) -> str | None:
    """Why a gain in time to the end may be one in length only; None where it is not."""
    if found is None or found.longer > -LENGTH_NOTICE:
        return None
    effect = (
        median_effect(pair(observations, per_token), seed)
        if paired
        else median_effect_apart(samples(observations, per_token), seed)
    )
    if finding(effect, math.log1p(minimum_effect)) == "faster":
        return None
    return (
        f"the candidate's answers are {-found.longer:.0%} shorter, which alone shortens them in time, and per output token it is "
        "not shown to be faster: --ignore-eos makes both write equally much"
    )


def answer_caveats(identity: Identity, found: Lengths | None, greedy: bool | None, judged: bool) -> tuple[str, ...]:
    """What a reader of the verdict must know of the answers. `judged`: their quality was measured."""
    said = []
    if found is None:
        said.append("The servers did not tell how long answers were, so unequal lengths would not have been seen.")
    elif abs(found.longer) >= LENGTH_NOTICE:
        said.append(
            f"Answers of the candidate are {found.longer:+.0%} in length ({found.baseline:.0f} against "
            f"{found.candidate:.0f} tokens on average), which is part of the difference in time to the end."
        )
    if not identity.compared:
        said.append("No answer could be compared with the other arm's, so whether both say the same is not known.")
    elif identity.differing:
        said.append(
            f"{len(identity.differing)} of {identity.compared} prompts were answered differently (compared by {identity.basis}"
            f"{', greedy sampling' if greedy else ''}){'' if judged else '; whether as well was not judged'}."
        )
    if identity.baseline_differs:
        said.append(
            f"The baseline contradicts itself on {len(identity.baseline_differs)} prompts, so differences may be chance."
        )
    return tuple(said)

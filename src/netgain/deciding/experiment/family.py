"""Several candidates tried for one purpose: at which level each is judged, so that all together adopt one that is equal to the
baseline no more often than a single try may. Each has an experiment of its own; nothing is assumed of how those depend on each
other."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.deciding.experiment.analyse import Analysis, Terms, analyse, end_to_end
from netgain.deciding.experiment.correction import holm_levels
from netgain.deciding.experiment.observation import Observation, pair
from netgain.deciding.experiment.statistics import CONFIDENCE, median_effect
from netgain.deciding.experiment.sweeping import Swept, analyse_loads
from netgain.deciding.experiment.verdict import Check
from netgain.wording import count


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate among all that were `tried`: its two-sided `p` against "no change" is held to `level`, so that all together
    err with at most `together`."""

    tried: tuple[str, ...]
    p: float
    level: float
    together: float

    @property
    def says(self) -> str:
        """For a reader of this candidate's verdict alone."""
        return (
            f"one of {count(len(self.tried), 'candidate')} that were tried ({', '.join(self.tried)}): held to "
            f"{self.level * 100:.3g} % by Holm's method, so that all together err no more often than one may "
            f"({self.together * 100:.3g} %)"
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate's verdict. `place` None: it was the only one, and nothing was corrected. `swept`: over several loads."""

    analysis: Analysis
    place: Place | None = None
    swept: Swept | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one candidate, the terms it is held to and whether its measurement is valid. `predicted`: its speedup
    by load, in an experiment over several."""

    observations: Sequence[Observation]
    terms: Terms
    checks: Sequence[Check] = ()
    predicted: Mapping[int, float | None] = {}


def analyse_family(
    candidates: Mapping[str, Candidate],
    load_of: Callable[[int], int] | None = None,
    together: float = round(1.0 - CONFIDENCE, 12),
) -> dict[str, Judged]:
    """Judge all candidates, each at its level by Holm's method: the more there are, the wider their intervals.

    `load_of`: the load of a group, where the experiments were made over several; then a candidate's p value is the smallest of
    its loads times their number. A single candidate is judged as it would be alone.
    """
    if len(candidates) == 1:
        return {name: _judge(one, one.terms, load_of) for name, one in candidates.items()}
    p_values = {name: p_value(one, load_of) for name, one in candidates.items()}
    levels = holm_levels(list(p_values.values()), together)
    found: dict[str, Judged] = {}
    for (name, one), level in zip(candidates.items(), levels, strict=True):
        place = Place(tried=tuple(candidates), p=p_values[name], level=level, together=together)
        found[name] = _placed(_judge(one, msgspec.structs.replace(one.terms, confidence=1.0 - level), load_of), place)
    return found


def p_value(one: Candidate, load_of: Callable[[int], int] | None = None) -> float:
    """Two-sided, of the effect that decides; 1 where there is none. Over several loads by Bonferroni, as their intervals are."""
    if load_of is None:
        return _two_sided(one.observations, one.terms.seed)
    loads = {load_of(seen.group) for seen in one.observations}
    each = (
        _two_sided([seen for seen in one.observations if load_of(seen.group) == load], one.terms.seed) for load in loads
    )
    return min(1.0, len(loads) * min(each, default=1.0))


def _two_sided(observations: Sequence[Observation], seed: int) -> float:
    effect = median_effect(pair(observations, end_to_end), seed)
    return 1.0 if effect is None else min(1.0, 2.0 * min(effect.p_faster, effect.p_slower))


def _judge(one: Candidate, terms: Terms, load_of: Callable[[int], int] | None) -> Judged:
    if load_of is None:
        return Judged(analysis=analyse(one.observations, terms, one.checks))
    swept = analyse_loads(one.observations, load_of, terms, one.checks, one.predicted)
    return Judged(analysis=swept.analysis, swept=swept)


def _placed(judged: Judged, place: Place) -> Judged:
    """The verdict says of itself that others were tried."""
    verdict = judged.analysis.verdict
    verdict = msgspec.structs.replace(verdict, reasons=(*verdict.reasons, place.says))
    return msgspec.structs.replace(
        judged, place=place, analysis=msgspec.structs.replace(judged.analysis, verdict=verdict)
    )

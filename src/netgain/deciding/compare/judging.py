"""From the observations of a comparison to its verdict: the statistics of every experiment, with what is special here: sides that
may not be the same model, answers of other lengths, and resources that differ on purpose."""

from collections.abc import Mapping, Sequence

import msgspec

from netgain.deciding.compare.outputs import Lengths, answer_caveats, identity_doubt, length_doubt, lengths
from netgain.deciding.compare.rule import Ruling
from netgain.deciding.compare.scaling import (
    Scaling,
    never_adopted,
    scaling,
    throughput_of_blocks,
    throughput_of_results,
)
from netgain.deciding.compare.settings import Settings
from netgain.deciding.experiment.analyse import Analysis, Terms, analyse
from netgain.deciding.experiment.identity import compare_tokens
from netgain.deciding.experiment.observation import Observation
from netgain.deciding.experiment.verdict import Check
from netgain.measuring.workload.slo import parse_slo

SAME_SERVER = "baseline and candidate are one server: this shows what chance alone does, and there is nothing to adopt"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """`caveats`: of the answers."""

    analysis: Analysis
    lengths: Lengths | None
    scaling: Scaling | None
    caveats: tuple[str, ...]


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How the observations came about. `greedy`: all prompts were sampled so (None: not known). `rates`: output tokens per
    second of each result by side (None: blocks, one after another, tell). `doubts`, `scope` and `advice` as in `Terms`."""

    advice: str
    paired: bool = True
    greedy: bool | None = None
    doubts: tuple[str, ...] = ()
    scope: str | None = None
    rates: Mapping[str, tuple[float | None, ...]] | None = None


def judge_sides(
    observations: Sequence[Observation], checks: Sequence[Check], ruling: Ruling, settings: Settings, way: Way
) -> Judged:
    """Pure: no clock, no server."""
    identity = compare_tokens(observations)
    found = lengths(observations, way.paired)
    doubts = [
        SAME_SERVER if settings.servers and settings.same_server else None,
        identity_doubt(identity, ruling, settings.promises_identity),
        length_doubt(observations, found, way.paired, settings.minimum_effect, settings.seed),
    ]
    terms = Terms(
        promises_identity=settings.promises_identity,
        slo=None if settings.slo is None else parse_slo(settings.slo),
        minimum_effect=settings.minimum_effect,
        seed=settings.seed,
        doubts=(*way.doubts, *(doubt for doubt in doubts if doubt is not None)),
        paired=way.paired,
        scope=way.scope,
        advice=way.advice,
    )
    analysis = analyse(observations, terms, checks)
    result = None
    if ruling.kind == "scaling":
        shown = throughput_of_blocks(observations, settings.seed)
        if way.rates is not None:
            shown = throughput_of_results(way.rates, settings.seed)
        result = scaling(ruling, shown)
        analysis = never_adopted(analysis, result)
    return Judged(
        analysis=analysis,
        lengths=found,
        scaling=result,
        caveats=answer_caveats(identity, found, greedy=way.greedy),
    )

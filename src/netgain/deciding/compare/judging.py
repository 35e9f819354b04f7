"""From the observations of a comparison to its verdict: the statistics of every experiment, with what is special here: sides that
may not be the same model, answers of other lengths, and resources that differ on purpose."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.deciding.compare.outputs import Lengths, answer_caveats, length_doubt, lengths
from netgain.deciding.compare.quality import worth
from netgain.deciding.compare.rule import Ruling
from netgain.deciding.compare.scaling import (
    Scaling,
    never_adopted,
    scaling,
    throughput_of_blocks,
    throughput_of_results,
)
from netgain.deciding.compare.settings import Settings
from netgain.deciding.decide.quality import Judged as QualityJudged
from netgain.deciding.decide.quality import for_verdict
from netgain.deciding.experiment.analyse import Analysis, Terms, analyse
from netgain.deciding.experiment.identity import compare_tokens
from netgain.deciding.experiment.observation import Observation
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.experiment.sweeping import analyse_loads
from netgain.deciding.experiment.verdict import Check
from netgain.deciding.verdict.quality import Quality
from netgain.measuring.workload.slo import parse_slo

SAME_SERVER = "baseline and candidate are one server: this shows what chance alone does, and there is nothing to adopt"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """`caveats`: of the answers. `quality` as measured; `lossy`: why it had to be before anything is adopted."""

    analysis: Analysis
    lengths: Lengths | None
    scaling: Scaling | None
    caveats: tuple[str, ...]
    quality: Quality | None
    lossy: tuple[str, ...]
    sweep: Sweep | None = None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How the observations came about. `greedy`: all prompts were sampled so (None: not known). `rates`: output tokens per
    second of each result by side (None: blocks, one after another, tell). `doubts`, `scope` and `advice` as in `Terms`.
    `quality`: what was measured of it beside the speed. `load_of`: the load of a group, where there are several (None: one)."""

    advice: str
    paired: bool = True
    greedy: bool | None = None
    doubts: tuple[str, ...] = ()
    scope: str | None = None
    rates: Mapping[str, tuple[float | None, ...]] | None = None
    quality: QualityJudged | None = None
    load_of: Callable[[int], int] | None = None


def judge_sides(
    observations: Sequence[Observation], checks: Sequence[Check], ruling: Ruling, settings: Settings, way: Way
) -> Judged:
    """Pure: no clock, no server."""
    identity = compare_tokens(observations)
    found = lengths(observations, way.paired)
    answers = worth(identity, ruling, settings, way.quality)
    doubts = [
        SAME_SERVER if settings.servers and settings.same_server else None,
        ruling.doubt,
        *answers.doubts,
        length_doubt(observations, found, way.paired, settings.minimum_effect, settings.seed),
    ]
    terms = Terms(
        promises_identity=settings.promises_identity,
        slo=None if settings.slo is None else parse_slo(settings.slo),
        minimum_effect=settings.minimum_effect,
        seed=settings.seed,
        doubts=(*way.doubts, *(doubt for doubt in doubts if doubt is not None)),
        losses=answers.losses,
        paired=way.paired,
        scope=way.scope,
        advice=way.advice,
    )
    swept = None if way.load_of is None else analyse_loads(observations, way.load_of, terms, checks)
    analysis = analyse(observations, terms, checks) if swept is None else swept.analysis
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
        caveats=(
            *answer_caveats(identity, found, greedy=way.greedy, judged=way.quality is not None),
            *((way.quality.caveat,) if answers.reasons and way.quality is not None and way.quality.caveat else ()),
        ),
        quality=None
        if way.quality is None
        else for_verdict(
            way.quality,
            "token-identical" if settings.promises_identity else "lossy",
            identity,
            None if settings.quality is None else settings.quality.scorer,
        ),
        lossy=answers.reasons,
        sweep=None if swept is None else swept.sweep,
    )

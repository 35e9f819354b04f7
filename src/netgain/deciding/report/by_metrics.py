"""What the servers' metrics tell of stages, where answers come without them: the waterfall and each arm's shares."""

from collections.abc import Mapping, Sequence

import msgspec

from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.waterfall import Waterfall, waterfall_by_metrics
from netgain.deciding.report.outcome import ArmReport
from netgain.ledger.stage import Stage
from netgain.measuring.observe.stages import StageSum


def with_metrics(
    analysis: Analysis,
    arms: Sequence[ArmReport],
    observations: Sequence[Observation],
    stages: Mapping[str, Mapping[Stage, StageSum]],
) -> tuple[Analysis, tuple[ArmReport, ...]]:
    """Both as they are where answers told their stages, or where metrics do not tell them either."""
    fall = analysis.waterfall or waterfall_by_metrics(observations, stages)
    if fall is None or fall.by == "records":
        return analysis, tuple(arms)
    shares = {name: _shares(fall, name) for name in (BASELINE, CANDIDATE)}
    return msgspec.structs.replace(analysis, waterfall=fall), tuple(
        msgspec.structs.replace(arm, stage_share=arm.stage_share or shares.get(arm.name, {})) for arm in arms
    )


def _shares(fall: Waterfall, arm: str) -> dict[Stage, float]:
    """Of the end-to-end time; what no metric tells is unattributed."""
    whole, told = (
        (fall.baseline_ns, fall.baseline_stages_ns)
        if arm == BASELINE
        else (fall.candidate_ns, fall.candidate_stages_ns)
    )
    if whole <= 0:
        return {}
    scale = min(1.0, whole / sum(told.values())) if sum(told.values()) else 1.0  # two clocks
    shares = {stage: spent * scale / whole for stage, spent in told.items()}
    return shares | {Stage.UNATTRIBUTED: max(0.0, 1.0 - sum(shares.values()))}

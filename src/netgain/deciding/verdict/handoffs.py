"""Handoffs as a verdict tells them: what each kind cost each arm, and of which arm it is not known, and why."""

from collections.abc import Mapping

from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.verdict.document import HandoffCost
from netgain.measuring.observe.handoffs import Handoffs


def handoff_costs(told: Mapping[str, Handoffs]) -> tuple[tuple[HandoffCost, ...] | None, dict[str, str]]:
    """By arm: the kinds that happened, None where no arm tells; and the reasons of those that do not tell."""
    unknown = {arm: one.unknown for arm, one in told.items() if one.unknown is not None}
    if len(unknown) == len(told):
        return None, unknown
    costs = tuple(
        HandoffCost(arm=arm, kind=kind, **figures)
        for arm, one in told.items()
        if one.unknown is None
        for kind, figures in one.kinds.items()
    )
    return costs, unknown


def of_trial(trial: Trial, told: Mapping[str, Handoffs]) -> dict[str, Handoffs]:
    """`told` by arm, where that is about what the trial is judged by, and nothing else."""
    if len(trial.fresh) < len(trial.observations):
        why = "a part of the run was measured before it went on, and what its servers counted then is not kept"
    elif trial.stopped:
        why = "the run was interrupted, and the servers counted requests that are not judged"
    else:
        return dict(told)
    return {arm: Handoffs(unknown=one.unknown or why) for arm, one in told.items()}

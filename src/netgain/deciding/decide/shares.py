"""A budget that several candidates share: what the next one has of it, and what became of it all.

Each has an even share of what is left, so that what one saves the others may use, but at least what can decide. One for which
too little is left to decide anything is not tried: that depends on time alone, never on what was found, so what is tried is no
choice among results.
"""

from collections.abc import Sequence

import msgspec

from netgain.deciding.decide.prepared import Prepared
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.trying import Share, Tried
from netgain.deciding.experiment.spending import amount, budget_before, extent_of_blocks, least_s
from netgain.deciding.experiment.sweep import each_confidence
from netgain.deciding.report.several import SharedBudget


def next_share(prepared: Prepared, settings: Settings, tried: Sequence[Tried], left: int) -> Share | str:
    """Of the next of `left` candidates, or why it is not tried."""
    design, total_s = prepared.design, settings.budget_s
    confidence = each_confidence(len(prepared.chosen))
    if total_s is None:
        return Share(budget_s=None, planned=prepared.base.budget, confidence=confidence)
    left_s = total_s - sum(one.spent_s for one in tried)
    share_s = left_s / left
    devices = settings.devices * (3 if design.with_control else 2)
    if tried:
        least = max(least_s(design, extent_of_blocks(one.trial.blocks), one.spent_s) for one in tried)
        if left_s < least:
            return (
                f"not tried, since of the budget of {amount(total_s, devices)} too little was left: "
                f"{amount(max(0.0, left_s), devices)}, and the least that can decide takes about {amount(least, devices)}"
            )
        share_s = max(share_s, least)  # the better predicted come first: those after it may be left with too little
    planned = prepared.base.budget
    if planned is None:
        planned = msgspec.structs.replace(budget_before(design, share_s, devices), shared_by=len(prepared.chosen))
    return Share(budget_s=share_s, planned=planned, confidence=confidence)


def shared_budget(settings: Settings, prepared: Prepared, tried: Sequence[Tried]) -> SharedBudget | None:
    """Of all together; None without a budget."""
    if settings.budget_s is None:
        return None
    planned = prepared.base.budget
    expected_s = None if planned is None or planned.expected_s is None else planned.expected_s * len(prepared.chosen)
    spent_s = sum(one.spent_s for one in tried)
    return SharedBudget(
        asked_s=settings.budget_s,
        expected_s=expected_s,
        spent_s=spent_s,
        devices=settings.devices * (3 if prepared.design.with_control else 2),
        exceeded=spent_s > settings.budget_s,
    )

"""What would turn an inconclusive run into a decision: how much more of the same, and what to do next."""

import math

from netgain.deciding.experiment.statistics import Effect

WORTHWHILE = 50  # times the groups measured; an estimate beyond it is no plan


def next_steps(primary: Effect | None, groups_needed: int | None, *, full_form: bool, looping: bool) -> list[str]:
    """For a run that is valid and decides nothing. `looping`: only looping text stands between it and a decision."""
    if looping:
        return ["next: prompts, or a model, whose answers do not repeat themselves (--workload, --model)"]
    told = []
    if primary is not None and groups_needed is not None:
        told.append(
            f"about {groups_needed} groups of prompts would decide it if the noise stays as it is; {primary.groups} were measured"
        )
    if full_form:
        told.append(
            "next: the same command again while nothing else runs, since other work widens the interval and raises the noise "
            "floor (netgain doctor shows the load)"
        )
    else:
        told.append(
            "next: the same command without --quick, which measures more groups, each of them twice, and whole outputs; "
            "while nothing else runs (netgain doctor shows the load)"
        )
    return told


def groups_needed(primary: Effect | None, threshold: float) -> int | None:
    """Groups at which an interval of this spread, shrinking with the root of their number, would clear the threshold."""
    if primary is None or primary.low is None or primary.high is None:
        return None
    half = (math.log(primary.high) - math.log(primary.low)) / 2.0
    distance = abs(math.log(primary.ratio) - threshold)
    if distance <= 0.0 or half <= 0.0:
        return None
    needed = math.ceil(primary.groups * (half / distance) ** 2)
    return needed if primary.groups < needed <= WORTHWHILE * primary.groups else None

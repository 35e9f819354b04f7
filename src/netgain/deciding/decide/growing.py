"""The full form's server starts: as many as it takes where noise is large, decided once and said before."""

from collections.abc import Callable, Sequence

from netgain.deciding.decide.budget import Estimate
from netgain.deciding.decide.settings import Form
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.growth import Growth, grow
from netgain.deciding.experiment.observation import Observation
from netgain.deciding.experiment.statistics import CONFIDENCE
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.workload.item import Item
from netgain.wording import count


def most_starts(form: Form, cost: Estimate, budget_s: float | None) -> int:
    """How far the form, whose own starts cost `cost`, may grow within a budget of device-seconds: an even number of starts at
    a time, each of which costs as much as one of the form's own."""
    most = form.most_starts or form.starts
    if budget_s is not None:
        while most > form.starts and 3600.0 * cost.device_hours * most / form.starts > budget_s:
            most -= 2
    return max(most, form.starts)


def growing_design(items: Sequence[Item], form: Form, concurrency: int, most: int) -> Design:
    """Groups for `most` starts, of which those of the form's own starts come first and hold the prompts that they always hold."""
    groups = grouped(items, form.starts * form.groups, form.group_size)
    if most > form.starts:
        used = sum(map(len, groups)) % len(items)
        groups += grouped((*items[used:], *items[:used]), (most - form.starts) * form.groups, form.group_size)
    return Design(
        groups=groups,
        concurrency=concurrency,
        starts=most,
        control_every=form.control_every,
        enough_after=form.starts if most > form.starts else None,
    )


def when_enough(
    design: Design,
    minimum_effect: float,
    seed: int,
    narrator: Narrator,
    keep: Callable[[Growth], None],
    confidence: float = CONFIDENCE,
) -> Callable[[Sequence[Observation]], int] | None:
    """What to ask after the fewest starts: how many there are to be. None for a design that does not grow. `confidence`: that of
    the interval which must then decide."""
    if design.enough_after is None:
        return None

    def decided(observations: Sequence[Observation]) -> int:
        found = grow(observations, design.starts, minimum_effect, seed, confidence)
        keep(found)
        if found.says is not None:
            more = design.up_to(found.starts).blocks - design.fewest.blocks
            narrator.phase(f"{found.says} ({count(more, 'more block')})", more)
        return found.starts

    return decided

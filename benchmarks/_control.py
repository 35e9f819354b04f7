"""What the full form has beside two arms: a control server that answers every so many groups, and checks that void a run.

Recordings hold two servers at a time. A third one is made of two rounds: its logarithmic times lie half way between both servers
of its own round, plus the difference of both servers of another round times sqrt(3) / 2. It then differs from the baseline by as
much as two servers that were recorded do, and shares as much with the baseline as the candidate does (correlation 1/2), which is
what holds of three servers that are alike.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL, Observation
from netgain.deciding.experiment.verdict import Check
from netgain.measuring.client.options import Budget
from netgain.measuring.client.quantile import quantile

Scale = Callable[[Observation, float], Observation]
Place = tuple[int, str, int]  # group, prompt, and which of its repeats


def with_control(
    own: Sequence[Observation], other: Sequence[Observation], every: int, scaled: Scale
) -> list[Observation]:
    """One start, its blocks counted from 0, with a control in every `every`-th group in the order of the design (mirrored, the
    control inmost). `own` and `other`: two rounds, the servers of both called baseline and candidate by the same rule."""
    theirs = {arm: list(_by_place(other, arm).values()) for arm in (BASELINE, CANDIDATE)}
    baseline, candidate = _by_place(own, BASELINE), _by_place(own, CANDIDATE)
    first = min(seen.group for seen in own)
    found: list[Observation] = []
    at = 0
    for group in sorted({seen.group for seen in own}):
        here = [seen for seen in own if seen.group == group]
        order: list[list[Observation]] = [[seen for seen in here if seen.block == block] for block in _blocks(here)]
        if (group - first) % every == 0:
            controls = [
                _third(baseline[place], candidate[place], theirs[BASELINE][number], theirs[CANDIDATE][number], scaled)
                for number, place in enumerate(baseline)
                if place[0] == group
            ]
            halves = [[seen for seen in controls if seen.block == block] for block in _blocks(controls)]
            order[len(order) // 2 : len(order) // 2] = halves
        for block in order:
            found += [msgspec.structs.replace(seen, block=at) for seen in block]
            at += 1
    return found


def _blocks(seen: Iterable[Observation]) -> list[int]:
    return sorted({one.block for one in seen})


def _by_place(seen: Sequence[Observation], arm: str) -> dict[Place, Observation]:
    """Of one arm, in order of time: the same places in every round."""
    repeats: dict[tuple[int, str], int] = defaultdict(int)
    found: dict[Place, Observation] = {}
    for one in sorted((one for one in seen if one.arm == arm), key=lambda one: one.block):
        key = (one.group, one.record.item_id)
        found[(*key, repeats[key])] = one
        repeats[key] += 1
    return found


def _third(
    baseline: Observation, candidate: Observation, one: Observation, another: Observation, scaled: Scale
) -> Observation:
    apart = 0.5 * math.log(candidate.record.e2e_s / baseline.record.e2e_s)
    apart += 0.5 * math.sqrt(3.0) * math.log(another.record.e2e_s / one.record.e2e_s)
    return msgspec.structs.replace(scaled(baseline, math.exp(-apart)), arm=CONTROL)


def checked(observations: Sequence[Observation]) -> tuple[Check, ...]:
    """The checks of every experiment, on blocks as far as the recordings tell of them: times and the client's lateness. CPU time
    of idle arms and cached tokens were not kept, so these checks say that they could not be made."""
    by_block: dict[int, list[Observation]] = defaultdict(list)
    for seen in observations:
        by_block[seen.block].append(seen)
    return check_trial(
        Trial(
            observations=tuple(observations), blocks=tuple(_block(index, by_block[index]) for index in sorted(by_block))
        )
    )


def _block(index: int, seen: Sequence[Observation]) -> Block:
    late = quantile(sorted(one.record.sent_s - one.record.scheduled_s for one in seen), 0.99)
    limit = Budget().lateness_p99_s
    return Block(
        index=index,
        group=seen[0].group,
        repeat=0,
        arm=seen[0].arm,
        start=seen[0].start,
        started_s=min(one.record.scheduled_s for one in seen),
        finished_s=max(one.record.finished_s for one in seen),
        idle_cpu={},
        foreign_cpu=None,
        lateness_p99_s=late,
        client_void=f"lateness p99 was {late * 1e3:.1f} ms" if late is not None and late > limit else None,
        output_tokens=None,
    )

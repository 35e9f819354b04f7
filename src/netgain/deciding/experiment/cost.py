"""What both arms of an experiment cost at a price per device-hour, over the blocks in which each was under load."""

import math
from collections.abc import Mapping, Sequence

from netgain.cost.price import Costs, Devices, Price, Served, compared, cost
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.workload.slo import SLO


def costs_of_blocks(
    price: Price,
    devices: Mapping[str, Devices],
    observations: Sequence[Observation],
    blocks: Sequence[Block],
    slo: SLO | None,
) -> Costs:
    """`blocks`: those in which `observations` were made. What failed was paid for, and brought nothing."""
    costs = {
        name: cost(price, devices[name], _served(name, observations, blocks, slo)) for name in (BASELINE, CANDIDATE)
    }
    return compared(costs[BASELINE], costs[CANDIDATE])


def _served(name: str, observations: Sequence[Observation], blocks: Sequence[Block], slo: SLO | None) -> Served:
    records = [seen.record for seen in observations if seen.arm == name]
    good = [record for record in records if record.ok]
    judged = [] if slo is None else [slo.met_by(record) for record in records]
    return Served(
        seconds=math.fsum(block.seconds for block in blocks if block.arm == name),
        output_tokens=_total([record.output_tokens for record in good]),
        prompt_tokens=_total([record.prompt_tokens for record in good]),
        met_slo=None if all(answer is None for answer in judged) else float(judged.count(True)),
        slo=slo is not None,
    )


def _total(counts: Sequence[int | None]) -> float | None:
    """Unknown as soon as one is."""
    known = [count for count in counts if count is not None]
    return float(sum(known)) if len(known) == len(counts) else None

"""What both arms of a decision cost, where a price was given."""

from collections.abc import Sequence

from netgain.cost.price import Costs, Devices
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.sweeping import blocks_of
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.cost import costs_of_blocks
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.workload.slo import SLO


def costs_at(
    settings: Settings, observations: Sequence[Observation], blocks: Sequence[Block], slo: SLO | None
) -> Costs | None:
    """Of the load that `observations` are of; both arms occupy as many devices. None without a price."""
    if settings.price is None:
        return None
    source = "--devices" if settings.hooks is None else "devices in the hooks' file"
    told = f"from {source}, or the engine's own flags"
    if settings.devices_written is None:
        told = f"assumed, since nothing says how many: {source} does"
    devices = Devices(count=settings.devices, said_by=told)
    return costs_of_blocks(
        settings.price, {BASELINE: devices, CANDIDATE: devices}, observations, blocks_of(blocks, observations), slo
    )

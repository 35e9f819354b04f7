"""What both sides of a comparison cost: how many devices each has, and what its results brought."""

import math
from collections.abc import Mapping, Sequence

from netgain.cost.price import Costs, Devices, Price, Served, compared, cost
from netgain.deciding.compare.loading import Loaded
from netgain.deciding.compare.rule import Row
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.measuring.measurement.cost import served_in_window
from netgain.measuring.workload.slo import SLO


def devices_of(fields: Sequence[Row]) -> dict[str, Devices]:
    """As the rule of equal resources knows them. Where neither side tells, one is assumed of each; where one does, the other's
    stay unknown, since an assumption would decide which is cheaper."""
    row = next((row for row in fields if row.field == "devices"), None)
    known = {} if row is None else {BASELINE: row.baseline, CANDIDATE: row.candidate}
    found = {name: value if isinstance(value, int) else None for name, value in known.items()}
    if all(count is None for count in found.values()):
        assumed = "assumed, since nothing says how many: --baseline-is devices=N and --candidate-is devices=N do"
        return {name: Devices(count=1, said_by=assumed) for name in (BASELINE, CANDIDATE)}
    assert row is not None
    said_by = {BASELINE: row.baseline_from, CANDIDATE: row.candidate_from}
    return {
        name: Devices(
            count=count,
            said_by=f"--{name}-is devices=N says how many"
            if count is None
            else "as declared"
            if said_by[name] == "declared"
            else f"as the {said_by[name]} says",
        )
        for name, count in found.items()
    }


def costs_of_results(
    price: Price, devices: Mapping[str, Devices], sides: Mapping[str, Sequence[Loaded]], slo: SLO | None
) -> Costs:
    """All results of a side together, each over its window of steady load."""
    costs = {name: cost(price, devices[name], _together(sides[name], slo)) for name in (BASELINE, CANDIDATE)}
    return compared(costs[BASELINE], costs[CANDIDATE])


def _together(side: Sequence[Loaded], slo: SLO | None) -> Served:
    parts = [_served(one, slo) for one in side]
    return Served(
        seconds=math.fsum(part.seconds for part in parts),
        output_tokens=_total([part.output_tokens for part in parts]),
        prompt_tokens=_total([part.prompt_tokens for part in parts]),
        met_slo=_total([part.met_slo for part in parts]),
        slo=slo is not None,
    )


def _served(one: Loaded, slo: SLO | None) -> Served:
    judged = [] if slo is None else [slo.met_by(row.record) for row in one.rows]
    met = None if all(answer is None for answer in judged) else float(judged.count(True))
    return served_in_window(one.measurement.summary, met, slo is not None)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None

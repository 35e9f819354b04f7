"""Net gain, stage by stage: what was saved, what was spent, and what the server's stages do not explain."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord

NS = 1e9


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Mean nanoseconds per request, as integers so that they add up exactly:

    `net_ns` = `baseline_ns` - `candidate_ns` = sum(`saved_ns`) + `residual_ns`.

    A positive entry of `saved_ns` was saved by the candidate, a negative one is spent by it. The residual is the
    client's difference minus the server's: network, the client itself, and clocks. Means add; medians would not.
    """

    requests: int
    baseline_ns: int
    candidate_ns: int
    baseline_stages_ns: dict[Stage, int]
    candidate_stages_ns: dict[Stage, int]
    saved_ns: dict[Stage, int]
    residual_ns: int

    @property
    def net_ns(self) -> int:
        return self.baseline_ns - self.candidate_ns


def waterfall(
    observations: Iterable[Observation], baseline: str = BASELINE, candidate: str = CANDIDATE
) -> Waterfall | None:
    """Means over prompts, each counted once per arm (repeats averaged), of prompts fully measured in both arms.

    None when no prompt succeeded with a server record in both arms.
    """
    found: dict[str, dict[tuple[int, str], list[ClientRecord]]] = {
        baseline: defaultdict(list),
        candidate: defaultdict(list),
    }
    for observation in observations:
        if observation.arm in found:
            found[observation.arm][observation.key].append(observation.record)
    keys = [
        key
        for key in sorted(found[baseline])
        if key in found[candidate] and all(usable(r) for arm in found.values() for r in arm[key])
    ]
    if not keys:
        return None
    before, before_stages = _means([found[baseline][key] for key in keys])
    after, after_stages = _means([found[candidate][key] for key in keys])
    saved = {
        stage: before_stages.get(stage, 0) - after_stages.get(stage, 0)
        for stage in Stage
        if stage in before_stages or stage in after_stages
    }
    return Waterfall(
        requests=len(keys),
        baseline_ns=before,
        candidate_ns=after,
        baseline_stages_ns=before_stages,
        candidate_stages_ns=after_stages,
        saved_ns=saved,
        residual_ns=before - after - sum(saved.values()),
    )


def usable(record: ClientRecord) -> bool:
    """Whether the request succeeded and the server told its stages."""
    return record.ok and record.server is not None


def _means(prompts: list[list[ClientRecord]]) -> tuple[int, dict[Stage, int]]:
    """Mean end-to-end nanoseconds and mean nanoseconds per stage; repeats of a prompt share its one vote."""
    total = 0.0
    stages: dict[Stage, float] = defaultdict(float)
    for repeats in prompts:
        vote = NS / (len(repeats) * len(prompts))
        for record in repeats:
            total += record.e2e_s * vote
            for stage, seconds in record.server.stages.items() if record.server is not None else ():
                stages[stage] += seconds * vote
    return round(total), {stage: round(stages[stage]) for stage in Stage if stage in stages}

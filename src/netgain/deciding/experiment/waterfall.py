"""Net gain, stage by stage: what was saved, what was spent, and what the server's stages do not explain."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.stages import StageSum

NS = 1e9


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Mean nanoseconds per request, as integers so that they add up exactly:

    `net_ns` = `baseline_ns` - `candidate_ns` = sum(`saved_ns`) + `residual_ns`.

    A positive entry of `saved_ns` was saved by the candidate, a negative one is spent by it. The residual is the
    client's difference minus the server's: network, the client itself, and clocks. Means add; medians would not.
    `by`: whether stages came with each answer, or are means over the run by the servers' metrics, of the stages that both
    tell: the rest of the server's time is in the residual then, too.
    """

    requests: int
    baseline_ns: int
    candidate_ns: int
    baseline_stages_ns: dict[Stage, int]
    candidate_stages_ns: dict[Stage, int]
    saved_ns: dict[Stage, int]
    residual_ns: int
    by: Literal["records", "metrics"] = "records"

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


def waterfall_by_metrics(
    observations: Iterable[Observation], stages: Mapping[str, Mapping[Stage, StageSum]]
) -> Waterfall | None:
    """The same where no answer came with its stages. `observations`: all that the counters know of; `stages`: of each arm.
    None when the arms tell no stage that is the same, or no request succeeded in one of them."""
    seen = list(observations)
    shared = set(stages.get(BASELINE, {})) & set(stages.get(CANDIDATE, {}))
    records = {arm: [one.record for one in seen if one.arm == arm and one.record.ok] for arm in (BASELINE, CANDIDATE)}
    if not shared or not all(records.values()):
        return None
    e2e = {arm: round(NS * sum(record.e2e_s for record in of) / len(of)) for arm, of in records.items()}
    means = {
        arm: {
            stage: round(NS * told.seconds / (told.requests or len(records[arm])))
            for stage in Stage
            if stage in shared and (told := stages[arm][stage])
        }
        for arm in records
    }
    saved = {stage: means[BASELINE][stage] - means[CANDIDATE][stage] for stage in means[BASELINE]}
    return Waterfall(
        requests=min(len(of) for of in records.values()),
        baseline_ns=e2e[BASELINE],
        candidate_ns=e2e[CANDIDATE],
        baseline_stages_ns=means[BASELINE],
        candidate_stages_ns=means[CANDIDATE],
        saved_ns=saved,
        residual_ns=e2e[BASELINE] - e2e[CANDIDATE] - sum(saved.values()),
        by="metrics",
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

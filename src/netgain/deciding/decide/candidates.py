"""Techniques that cannot be tried on a workload, and why, before or after its traffic was recorded."""

from collections.abc import Mapping, Sequence

from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.technique.protocol import SwitchOn, Technique
from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine
from netgain.measuring.workload.item import Workload


def without_lossy(catalogue: Mapping[str, Technique]) -> dict[str, Technique]:
    """What is tried without having been named: nothing that may change answers for the worse."""
    return {name: candidate for name, candidate in catalogue.items() if candidate.kind != "lossy"}


def refuse_what_cannot_be_judged(workload: Workload, catalogue: Mapping[str, Technique]) -> None:
    """Raises UsageError when every candidate is one that no measurement of this workload could judge."""
    reasons = {name: candidate.cannot_judge(workload.synthetic) for name, candidate in catalogue.items()}
    if all(reasons.values()):
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UsageError(f"nothing can be decided on the workload {workload.name!r}. {told}")


def choose(
    hypotheses: Sequence[Hypothesis], catalogue: Mapping[str, Technique], engine: Engine, most: int = 1
) -> tuple[Hypothesis, ...]:
    """The highest predicted gains, `most` of them, among the techniques whose switch has started this engine; where those are
    fewer, then the ones whose switch needs something beside the engine or is unverified, which may keep it from starting."""
    able = [(one, one.prediction) for one in hypotheses if one.prediction is not None and one.technique in catalogue]
    starting = [
        one
        for one, prediction in able
        if prediction is not None and _starts(catalogue[one.technique].switch_on(engine, prediction.setting))
    ]
    others = [one for one, _ in able if one not in starting]
    return (*starting, *others)[:most]


def _starts(switch: SwitchOn) -> bool:
    return switch.verified and switch.needs is None


def nothing_to_try(hypotheses: Sequence[Hypothesis]) -> str:
    """Every technique with the reason why it cannot be tried."""
    reasons = "; ".join(
        f"{found.technique}: {found.cannot_apply or 'it is lossy, so it is only tried when named (--technique)'}"
        for found in hypotheses
    )
    return f"No technique of the catalogue can be tried here. {reasons}"

"""The step-cost curve that an engine keeps between its starts: where, how it is kept up, and what is said of it."""

from datetime import UTC, datetime

from netgain.cost.step_cost_store import StepCostStore
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.serving.engine.step_curve import StepCurve, Upkeep
from netgain.serving.runtime.config import StepCostSettings


def step_cost_store() -> StepCostStore | None:
    try:
        return StepCostStore(cache_folder() / "step-cost")
    except UsageError:  # nowhere to keep anything, which stands in the way of nothing else
        return None


def upkeep_of(settings: StepCostSettings) -> Upkeep | None:
    if settings.refresh == "never":
        return None
    return Upkeep(idle_s=settings.idle_s, max_age_s=settings.max_age_days * 86_400.0, margin=settings.margin)


def described(curve: StepCurve) -> str:
    if curve.cost is None:
        return "not measured yet"
    if curve.cost.measured_at is None:
        return "kept from an earlier start"
    at = datetime.fromtimestamp(curve.cost.measured_at, UTC)
    return f"kept from an earlier start, measured {at.isoformat(timespec='seconds')}"

"""How large the experiment is: its design, what it is expected to cost, and what a budget takes from it."""

from collections.abc import Sequence

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.deciding.decide.budget import Estimate, estimate, within
from netgain.deciding.decide.growing import growing_design, most_starts
from netgain.deciding.decide.settings import Form, Settings
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.spending import BudgetAccount, extent_of
from netgain.deciding.experiment.sweeping import expected_s, sweep_design
from netgain.deciding.technique.decomposition import Decomposition
from netgain.measuring.workload.item import Item


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`design` may have more starts than those that are measured in any case, of which `estimate` is. `lost`: what the budget
    took, in words. `budget`: what was planned within it (None: there is none)."""

    design: Design
    estimate: Estimate
    lost: tuple[str, ...]
    budget: BudgetAccount | None = None


def plan(
    settings: Settings,
    items: Sequence[Item],
    recorded: Decomposition,
    cost: StepCost | None,
    start_s: float,
    candidates: int = 1,
) -> Plan:
    """`items` were answered in the recording, from which times are expected; `start_s`: how long one server took to start.
    `candidates` are each tried by the same design, and share a budget evenly; the plan's account is of one of them. Raises
    UsageError when the budget is too small for anything that can decide."""

    def priced(form: Form) -> Estimate:
        design = design_of(settings, form, items, form.starts)
        seconds = measuring_s(design, recorded, cost, settings.concurrency)
        return estimate(form, seconds, start_s, settings.devices, settings.devices_written is None, candidates)

    form, lost = settings.form.fitted(recorded.e2e_s, settings.concurrency), tuple[str, ...]()
    whole = design_of(settings, form, items, form.starts)
    if settings.budget_s is not None:
        form, lost = within(settings.budget_s, form, priced)
    cost_of_it = priced(form)
    most = most_starts(form, cost_of_it, settings.budget_s)
    design = design_of(settings, form, items, most)
    budget = None
    if settings.budget_s is not None:
        budget = BudgetAccount(
            asked_s=settings.budget_s / candidates,
            devices=cost_of_it.arms * cost_of_it.devices,
            whole=extent_of(whole),
            planned=extent_of(design.fewest),
            expected_s=3600.0 * cost_of_it.device_hours / candidates,
            shared_by=candidates,
            lost=lost,
        )
    return Plan(design=design, estimate=cost_of_it, lost=lost, budget=budget)


def design_of(settings: Settings, form: Form, items: Sequence[Item], most: int) -> Design:
    """The experiment of this form at the load, or the loads, that were asked for; at one load it may grow to `most` starts."""
    if settings.loads:
        return sweep_design(items, settings.loads, form.starts, form.groups, form.control_every)
    return growing_design(items, form, settings.concurrency, most)


def measuring_s(design: Design, recorded: Decomposition, cost: StepCost | None, concurrency: int) -> float:
    """How long all blocks take, from the mean time recorded at `concurrency` and, for other loads, what a step of that batch
    costs more (unknown: nothing)."""
    context = round(recorded.prompt_tokens + recorded.output_tokens / 2)

    def request_s(load: int) -> float:
        if cost is None or load == concurrency:
            return recorded.e2e_s
        dearer, now = (cost.verify(batch, 1, context).seconds for batch in (load, concurrency))
        return recorded.e2e_s * dearer / now

    return expected_s(design, request_s)

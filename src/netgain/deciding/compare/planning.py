"""How much of a comparison is measured: groups of prompts under starts of the servers, within the time or the budget there is."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from netgain.deciding.compare.settings import Settings
from netgain.deciding.decide.budget import Estimate, estimate, within
from netgain.deciding.decide.growing import growing_design, most_starts
from netgain.deciding.decide.prepared import FREE, check_same, kept, settings_tree
from netgain.deciding.decide.prompts import prompts_wanted
from netgain.deciding.decide.settings import Form
from netgain.deciding.decide.sweeping import sizes
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.spending import BudgetAccount, Extent, extent_of
from netgain.deciding.experiment.sweeping import expected_s, sweep_design
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.measurement.result import Server
from netgain.measuring.workload.item import Workload
from netgain.wording import brief, count

QUEUES = 4.0  # times the requests that are in flight on average are sent in a block of an open loop


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Kept on disk beside the blocks. `settings`: what was asked for, as a tree; `lost`: what the budget took; `budget`: what was
    planned within it (None: there is none). `servers`: what those that others run told of themselves before the first block."""

    settings: dict[str, Any]
    design: Design
    lost: tuple[str, ...] = ()
    budget: BudgetAccount | None = None
    servers: dict[str, Server] = {}


def tree_of(settings: Settings) -> dict[str, Any]:
    """Without the headers, which may hold keys, and the words that described an arm, which may begin with variables."""
    tree = settings_tree(settings, FREE)
    for side in ("baseline", "candidate"):
        left_out = ("headers",) if tree[side]["arm"] is None else ("headers", "sources")
        tree[side] = {name: value for name, value in tree[side].items() if name not in left_out}
    return tree


def plan_before(settings: Settings) -> Plan:
    """That of a run that ended before its end. Raises UsageError naming the setting in which this one differs."""
    folder: Path = settings.output
    before = kept(folder, Plan)
    check_same(folder, before.settings, tree_of(settings))
    return before


def plan(
    settings: Settings,
    workload: Workload,
    request_s: float,
    start_s: float,
    repeatable: bool,
    narrator: Narrator,
    devices: Mapping[str, int | None],
    servers: Mapping[str, Server] | None = None,
) -> Plan:
    """`request_s`: of a single request; `repeatable`: a prompt can be asked again without being found in a cache; `devices`: of
    each side, as its server told or somebody declared (None: nobody); `servers`: those that others run. Raises
    UsageError where the budget is too small for anything."""
    form, lost = settings.form, tuple[str, ...]()
    if settings.rate_per_s is not None:
        in_flight = settings.rate_per_s * request_s
        form = msgspec.structs.replace(form, group_size=max(form.group_size, math.ceil(QUEUES * in_flight)))
    pace = _pace(settings, form, request_s)

    def seconds(form: Form) -> float:
        if settings.loads:
            return expected_s(_swept(settings, form, workload, repeatable), lambda _: request_s)
        return form.expected_s(*pace)

    asked, form = form, _fitted(settings, form, pace, seconds)
    held: int | None = None
    if len(settings.started) < 2:
        measuring_s = seconds(form)
        lost = _lost(settings, asked, form, measuring_s)
        cost = _running(settings, form, measuring_s, start_s, devices)
        for said in (f"the experiment: {cost.says}", *lost):
            narrator.found(said)
        groups = form.groups
        if not repeatable:
            groups = min(groups, max(FEWEST_UNITS, len(workload.items) // form.group_size))
        chosen = workload.subset(groups * form.group_size)
        design = Design(
            groups=grouped(chosen.items, groups, form.group_size),
            concurrency=settings.concurrency,
            control_every=form.control_every,
        )
    else:

        def priced(form: Form) -> Estimate:
            return estimate(form, seconds(form), start_s, settings.devices, settings.devices_assumed)

        asked = form
        if settings.budget_s is not None:
            form, lost = within(settings.budget_s, form, priced)
        cost = priced(form)
        held, measuring_s = cost.arms * cost.devices, 3600.0 * cost.device_hours
        for said in (f"the experiment: {cost.says}", *lost):
            narrator.found(said)
        chosen = workload.subset(form.starts * form.groups * form.group_size)
        most = most_starts(form, cost, settings.budget_s)
        design = growing_design(chosen.items, form, settings.concurrency, most)
    if settings.loads:
        design = _swept(settings, form, workload, repeatable)
    design = msgspec.structs.replace(design, mirrored=repeatable, rate_per_s=settings.rate_per_s, seed=settings.seed)
    budget = None
    if settings.budget_s is not None:
        planned = extent_of(design.fewest)
        budget = BudgetAccount(
            asked_s=settings.budget_s,
            devices=held,
            whole=planned
            if form == asked
            else extent_of(_swept(settings, asked, workload, repeatable))
            if settings.loads
            else _extent(asked, repeatable),
            planned=planned,
            expected_s=measuring_s,
            lost=lost,
        )
    return Plan(settings=tree_of(settings), design=design, lost=lost, budget=budget, servers=dict(servers or {}))


def _swept(settings: Settings, form: Form, workload: Workload, mirrored: bool) -> Design:
    """Several loads in turns, by the same design as in deciding."""
    chosen = workload.subset(prompts_wanted(form, settings.loads)) if settings.quick else workload
    design = sweep_design(chosen.items, settings.loads, form.starts, form.groups, form.control_every)
    return msgspec.structs.replace(design, mirrored=mirrored)


def _fitted(settings: Settings, form: Form, pace: tuple[float, int], seconds: Callable[[Form], float]) -> Form:
    """Within the time that the form allows; of several loads on servers that run, within the budget."""
    if not settings.loads or len(settings.started) == 2:
        return form.fitted(*pace)
    step = len(settings.loads)
    while settings.budget_s is not None and form.groups > step * FEWEST_UNITS and seconds(form) > settings.budget_s:
        form = msgspec.structs.replace(form, groups=max(form.groups - step, step * FEWEST_UNITS))
    return form


def _running(
    settings: Settings, form: Form, measuring_s: float, start_s: float, devices: Mapping[str, int | None]
) -> Estimate:
    """Where a server runs already: what all of them hold meanwhile. A control asks a running baseline's own server."""
    started = len(settings.started) + ("baseline" in settings.started and form.control_every is not None)
    running = 1 if settings.same_server else 2 - len(settings.started)
    return Estimate(
        arms=started + running,
        devices=max((known or 1 for known in devices.values()), default=1),
        wall_s=measuring_s + started * start_s,
        assumed=None in devices.values(),
    )


def _extent(form: Form, mirrored: bool) -> Extent:
    blocks = form.blocks if mirrored else form.blocks // 2
    return Extent(starts=form.starts, groups=form.starts * form.groups, blocks=blocks)


def _lost(settings: Settings, asked: Form, given: Form, expected_s: float) -> tuple[str, ...]:
    """What a budget of time takes from the form on running servers, and whether it is exceeded all the same."""
    budget_s = settings.budget_s
    if budget_s is None:
        return ()
    said = []
    if settings.loads and given.groups != asked.groups:
        said.append(
            f"Budget: {count(given.groups, 'group')} over all loads in place of {asked.groups}, so intervals are wider."
        )
    elif (given.groups, given.group_size) != (asked.groups, asked.group_size):
        said.append(
            f"Budget: {count(given.groups, 'group')} of {count(given.group_size, 'prompt')} in place of {asked.groups} of "
            f"{asked.group_size}, so intervals are wider."
        )
    if expected_s > budget_s:
        said.append(
            f"Budget: the least that can decide anything is expected to take {expected_s / 60.0:.1f} min, which is more than the "
            f"{brief(budget_s / 60.0)} asked for."
        )
    return tuple(said)


def announcement(design: Design, request_s: float) -> str:
    """What is about to be measured and how long that takes, also where the design may grow."""
    fewest = design.fewest
    starts = f" over {count(fewest.starts, 'server start')}" if fewest.starts > 1 else ""
    more = f"; up to {design.starts} starts where noise is large" if fewest is not design else ""
    return (
        f"comparing: {count(len(fewest.groups), 'group')} of {sizes(fewest)}{starts}, servers in turn "
        f"(about {_expected_s(fewest, request_s) / 60:.1f} min, if requests take as long as the first ones{more})"
    )


def _expected_s(design: Design, request_s: float) -> float:
    if design.rate_per_s is None:
        return expected_s(design, lambda _: request_s)
    return design.requests / design.rate_per_s + design.blocks * request_s


def _pace(settings: Settings, form: Form, request_s: float) -> tuple[float, int]:
    """Seconds of a request, and how many take them together: of an open loop, those of one block."""
    if settings.rate_per_s is None:
        return request_s, settings.concurrency
    return form.group_size / settings.rate_per_s + request_s, form.group_size

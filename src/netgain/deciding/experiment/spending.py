"""What an experiment takes of its budget, when it must end to keep it, and how a verdict tells of that.

How long an experiment takes is expected from the first requests; servers that turn out slower would exceed the budget.
So before each start of the servers (within a single start, before each group) it is asked whether as much time is left as
such a part took until now. That depends on time alone, never on what is found. What can decide anything is finished in any case.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.wording import brief, count


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured: `starts` of the servers, `groups` of prompts over all of them, and the arms' `blocks`."""

    starts: int
    groups: int
    blocks: int

    @property
    def says(self) -> str:
        counts = (count(self.starts, "start"), count(self.groups, "group"), count(self.blocks, "block"))
        return ", ".join(counts)


class BudgetAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and what became of it. Seconds are of devices: wall time times `devices` (all arms' together), or wall time of
    servers that run anyway (`devices` None).

    `whole`: what would be measured without a budget; `planned`: what was to be measured within it, which was expected to take
    `expected_s`; `run`: what was measured, which took `spent_s`. None = not known (yet). `lost`: what a smaller experiment loses
    for the verdict. `says`: all of it in sentences. `shared_by`: so many candidates, of which this is one with its share.
    """

    asked_s: float
    devices: int | None
    whole: Extent
    planned: Extent
    expected_s: float | None
    run: Extent | None = None
    spent_s: float | None = None
    exceeded: bool = False
    lost: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    shared_by: int = 1


def extent_of(design: Design) -> Extent:
    """All of a design."""
    return Extent(starts=design.starts, groups=len(design.groups), blocks=design.blocks)


def extent_of_blocks(blocks: Sequence[Block]) -> Extent:
    """What was measured."""
    return Extent(
        starts=len({block.start for block in blocks}),
        groups=len({block.group for block in blocks}),
        blocks=len(blocks),
    )


def budget_before(design: Design, budget_s: float, devices: int | None) -> BudgetAccount:
    """Of a run that goes on under a budget which it had not when it was planned."""
    extent = extent_of(design.fewest)
    return BudgetAccount(asked_s=budget_s, devices=devices, whole=extent, planned=extent, expected_s=None)


class Spending:
    """Counts device-seconds from when it is made, at the beginning of the first block that is still to be measured.

    `held`: devices that all arms hold together (1 of servers that run anyway). `starting_s`: to start all arms once, which was
    done before. `kept`: blocks that an earlier run had measured.
    """

    def __init__(
        self,
        design: Design,
        budget_s: float | None,
        held: int,
        starting_s: float,
        kept: Sequence[Block] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._design, self._budget_s, self._held, self._clock = design, budget_s, held, clock
        self._ended = False
        starts = len({block.start for block in kept}) + 1
        self._earlier_s = sum(block.seconds for block in kept) + starts * starting_s
        self._began_s = clock()

    @property
    def spent_s(self) -> float:
        """Device-seconds until now."""
        return self._held * (self._earlier_s + self._clock() - self._began_s)

    def affords(self, group: int) -> bool:
        """Whether the experiment goes on with this group, all before it having been measured."""
        if self._budget_s is None or group == 0 or not _decides(self._design, group):
            return True
        start = self._design.start_of(group)
        if start > self._design.start_of(group - 1):
            next_s = self.spent_s / start
        elif self._design.starts == 1 and not self._design.loads:
            next_s = self.spent_s / group
        else:
            return True  # a start that was begun is finished, since starts are what is compared
        self._ended = self.spent_s + next_s > self._budget_s
        return not self._ended

    def account(
        self, before: BudgetAccount | None, blocks: Sequence[Block], grown_to: int | None
    ) -> BudgetAccount | None:
        """What became of the budget (None: there is none). `before`: as it was planned; `grown_to`: starts that were to be
        measured, where the design was asked for more."""
        if self._budget_s is None:
            return None
        before = before or budget_before(self._design, self._budget_s, self._held)
        wanted = extent_of(self._design.fewest if grown_to is None else self._design.up_to(grown_to))
        run = extent_of_blocks(blocks)
        account = msgspec.structs.replace(
            before,
            asked_s=self._budget_s,
            run=run,
            spent_s=self.spent_s,
            exceeded=self.spent_s > self._budget_s,
            lost=(*before.lost, *(_lost_by_the_end(wanted, run) if self._ended else ())),
        )
        return msgspec.structs.replace(account, says=_says(account, wanted, self._ended))


def newly_lost(before: BudgetAccount | None, after: BudgetAccount | None) -> tuple[str, ...]:
    """What was lost while measuring, beyond what was lost in the plan."""
    known = () if before is None else before.lost
    return () if after is None else tuple(said for said in after.lost if said not in known)


def least_s(design: Design, run: Extent, spent_s: float) -> float:
    """What the least that can decide takes of this design, of which as much as `run` took `spent_s`."""
    groups = next(n for n in range(1, len(design.groups) + 1) if n == len(design.groups) or _decides(design, n))
    if design.starts == 1 and not design.loads:
        return spent_s * groups / max(1, run.groups)
    return spent_s * (design.start_of(groups - 1) + 1) / max(1, run.starts)


def _decides(design: Design, groups: int) -> bool:
    """Whether so many groups from the beginning are enough to decide, at every load."""
    if not design.loads:
        return groups >= FEWEST_UNITS
    done = Counter(design.loads[:groups])
    return all(done[load] >= FEWEST_UNITS for load in set(design.loads))


def _lost_by_the_end(wanted: Extent, run: Extent) -> tuple[str, ...]:
    """What an end before all was measured loses."""
    within = run.starts < FEWEST_UNITS <= wanted.starts
    return (
        f"Budget: ended after {count(run.groups, 'group')} in {count(run.starts, 'start')} of {wanted.groups} in "
        f"{wanted.starts}, so intervals are wider"
        + (" and the verdict holds within these starts only." if within else "."),
    )


def _says(account: BudgetAccount, wanted: Extent, ended: bool) -> tuple[str, ...]:
    run, spent_s = account.run, account.spent_s
    assert run is not None
    assert spent_s is not None
    of = f"The budget of {amount(account.asked_s, account.devices)} was "
    if account.shared_by > 1:
        of = f"Its share of the budget, {amount(account.asked_s, account.devices)}, was "
    expected = (
        "" if account.expected_s is None else f"; {amount(account.expected_s, account.devices)} had been expected"
    )
    told = [
        of
        + ("exceeded" if account.exceeded else "kept")
        + f": the experiment took {amount(spent_s, account.devices)}{expected}."
    ]
    if account.planned != account.whole:
        told.append(f"Planned within it: {account.planned.says}; without a budget: {account.whole.says}.")
    if ended:
        told.append(
            f"Measured: {run.says} of {wanted.says}: what was left would have exceeded the budget, since it took longer than "
            "expected."
        )
    elif account.exceeded and run == wanted:
        told.append(
            f"Measured: {run.says}, all that was planned: what had been begun, or is the least that can decide, is finished."
        )
    elif run != wanted:
        told.append(f"Measured: {run.says} of {wanted.says}.")
    return (*told, *account.lost)


def amount(seconds: float, devices: int | None) -> str:
    """Device-hours, or minutes of servers that run anyway."""
    if devices is None:
        return f"{brief(seconds / 60.0)} min"
    return f"{brief(seconds / 3600.0, 2)} device-hours"

"""Runs a paired experiment: both arms alive, one loaded at a time, A B B A per group of prompts, servers started again in
between, everything that could bias it measured on the way."""

import asyncio
import hashlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from netgain.deciding.experiment.agreement import Counted, compare_counts
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.idle import give_turn
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.counting import FigureLog
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.journal import Journal
from netgain.deciding.experiment.observation import Observation
from netgain.errors import UsageError
from netgain.ledger.stage import Stage
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import Run, run
from netgain.measuring.observe.handoffs import Handoffs
from netgain.measuring.observe.names import Figure
from netgain.measuring.observe.stages import StageSum
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item, Message
from netgain.wording import count

WARM_TOKENS = 8


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm is asked: the model by the name that it has there, and what the server accepts.

    `salted` False: it does not know cache_salt, so what it keeps of a prompt is found again. `reuses`: the technique under test
    gains by what earlier requests left behind, so nothing is reset between blocks and a salt lasts as long as a start, one for
    each repeat of a prompt; a server without salts finds it as the first words of every prompt instead.
    """

    model: str
    options: Options = Options()
    salted: bool = True
    reuses: bool = False

    def under(self, salt: str) -> Options:
        """Options under which prompts share no prefix-cache entry with another salt, where the server can do that."""
        return with_salt(self.options, salt) if self.salted else self.options

    @property
    def marks(self) -> bool:
        """Whether prompts have to be told apart by what they say."""
        return self.reuses and not self.salted

    def marked(self, items: Sequence[Item], salt: str) -> tuple[Item, ...]:
        """The prompts as they are asked under `salt`."""
        return tuple(_marked(item, salt) for item in items) if self.marks else tuple(items)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A finished experiment, before any judgement. `resumed_at`: blocks before which the servers had to be started again
    because the run had ended; within a start, blocks before and after it are of different processes. `stopped`: it was
    interrupted, and what it holds are the groups that were finished by then.

    `figures`: what the counters of each arm that was counted gained over its blocks, warm-up left out; `handoffs`: the same of
    what its handoffs cost; `stages`: the seconds of its stages, where metrics tell them; `counted`: `figures` beside what the
    client counted, of a run that was not stopped. All are of the `fresh` blocks."""

    observations: tuple[Observation, ...]
    blocks: tuple[Block, ...]
    resumed_at: tuple[int, ...] = ()
    stopped: bool = False
    figures: dict[str, dict[str, Figure]] = {}
    handoffs: dict[str, Handoffs] = {}
    stages: dict[str, dict[Stage, StageSum]] = {}
    counted: tuple[Counted, ...] = ()

    @property
    def fresh(self) -> tuple[Observation, ...]:
        """What was measured since the run last went on: all that the counters of its servers know of."""
        since = self.resumed_at[-1] if self.resumed_at else 0
        return tuple(seen for seen in self.observations if seen.block >= since)


async def conduct(
    arms: Mapping[str, Arm],
    design: Design,
    asking: Asking | Mapping[str, Asking],
    salt: str,
    on_block: Callable[[Block, int], None] | None = None,
    restart: Callable[[int], Awaitable[None]] | None = None,
    journal: Journal | None = None,
    enough: Callable[[Sequence[Observation]], int] | None = None,
    keep_interrupted: bool = False,
    counting: Sequence[str] = (),
    affords: Callable[[int], bool] | None = None,
) -> Trial:
    """Warm all arms up, then run all blocks. `asking`: of all arms, or of each by its name. `salt` separates this
    experiment's cache entries from any other's; within it each arm has its own, since arms may keep what they computed in
    one place (a folder, a bucket, the same server), and the one that is asked first would pay for the other.

    `restart(start)` ends every arm and starts it again; it is awaited before each start but the first, which has happened.
    Request failures are data; a failing client or a lost arm shows in the blocks and checks. Raises UsageError when the
    design has several starts and there is no `restart`.

    `enough` tells from what the design's `enough_after` starts showed how many starts there are to be.

    `journal` takes every block as it is finished; what it has already is not measured again. The caller made sure that it
    is about the same arms and design. With `keep_interrupted` an interruption (cancelling) ends the experiment and leaves the
    groups that were finished, if there is one. `counting`: arms of which the server's own counters are read. `affords(group)`
    is asked before each group that was not measured before: False ends the experiment.
    """
    if design.starts > 1 and restart is None:
        raise UsageError(f"{design.starts} starts need servers that can be started again; use a single start")
    ways = {name: asking if isinstance(asking, Asking) else asking[name] for name in arms}
    kept = () if journal is None else journal.kept
    observations: list[Observation] = []
    blocks: list[Block] = []
    started: int | None = None
    last = design.starts
    told = {name: arms[name] for name in counting}
    log = FigureLog()
    stopped = False
    try:
        for group, items in enumerate(design.groups):
            start = design.start_of(group)
            if enough is not None and start == design.enough_after and design.start_of(group - 1) < start:
                last = enough(observations)
            if start >= last:
                break
            if affords is not None and len(blocks) >= len(kept) and not affords(group):
                break
            common = _common(design, group)
            turns: dict[str, int] = {}
            for name in design.order(group):
                repeat = turns[name] = turns.get(name, -1) + 1
                if len(blocks) < len(kept):
                    block, seen = kept[len(blocks)].block, kept[len(blocks)].observations
                else:
                    if start != started:
                        if started is not None and restart is not None:
                            give_turn(arms, None)  # a frozen server could not be asked what it counted
                            await log.end(told)
                            await restart(start)
                        for warmed, arm in arms.items():
                            give_turn(arms, warmed)
                            await warm_up(arm, items, ways[warmed], f"{salt}-{start}-{warmed}")
                        give_turn(arms, None)
                        await log.begin(told)
                        started = start
                    shared = f"{salt}-{repeat}-{common if ways[name].reuses else group}"
                    block, done = await _block(
                        arms,
                        name,
                        ways[name].marked(items, shared),
                        design,
                        msgspec.structs.replace(ways[name], options=ways[name].under(f"{shared}-{name}")),
                        len(blocks),
                        group,
                        repeat,
                    )
                    seen = tuple(
                        Observation(
                            arm=name,
                            start=start,
                            group=group,
                            block=block.index,
                            record=record,
                            text=repeat if ways[name].marks else 0,
                        )
                        for record in done.records
                    )
                    if journal is not None:
                        journal.add(block, seen)
                blocks.append(block)
                observations += seen
                if on_block is not None:
                    on_block(block, design.blocks)
    except asyncio.CancelledError:
        whole = _finished(design, blocks)
        task = asyncio.current_task()
        if not keep_interrupted or not whole or task is None:
            raise
        task.uncancel()
        stopped = True
        blocks = [block for block in blocks if block.group in whole]
        observations = [seen for seen in observations if seen.group in whole]
    give_turn(arms, None)
    if started is not None:
        await log.end(told)
    trial = Trial(
        observations=tuple(observations),
        blocks=tuple(blocks),
        resumed_at=() if journal is None else journal.resumed_at,
        stopped=stopped,
        figures={name: log.figures(name) for name in told},
        handoffs={name: log.handoffs(name) for name in told},
        stages={name: log.stages(name) for name in told},
    )
    return msgspec.structs.replace(
        trial,
        counted=()
        if stopped
        else tuple(
            row
            for name, figures in trial.figures.items()
            for row in compare_counts(
                name, log.engine(name), figures, [seen.record for seen in trial.fresh if seen.arm == name]
            )
        ),
    )


def _common(design: Design, group: int) -> str:
    """What the salts of groups say between which prompts may share what they have in common: those of a start, but no prompt
    with itself, where a design has to ask it again."""
    start = design.start_of(group)
    asked = Counter(item.id for at in range(group) if design.start_of(at) == start for item in design.groups[at])
    return f"start-{start}-{max((asked[item.id] for item in design.groups[group]), default=0)}"


def how_far(trial: Trial, design: Design) -> str:
    """What a trial that was interrupted has, in words."""
    return f"{len({block.group for block in trial.blocks})} of {count(len(design.groups), 'group')}"


def _finished(design: Design, blocks: Sequence[Block]) -> set[int]:
    """Groups of which every block was measured."""
    done = Counter(block.group for block in blocks)
    return {group for group, number in done.items() if number == len(design.order(group))}


async def warm_up(arm: Arm, items: Sequence[Item], asking: Asking, salt: str) -> None:
    """A few short requests whose times are thrown away: the first ones pay for lazily built things.

    A server without salts is asked other prompts than those that are measured, since it would know these afterwards.
    """
    short = [msgspec.structs.replace(item, max_tokens=min(item.max_tokens, WARM_TOKENS)) for item in items]
    if not asking.salted:
        short = [_other(item, place) for place, item in enumerate(short)]
    await run(arm.url, asking.model, short, Closed(1), asking.under(f"{salt}-warm-up"))


def _other(item: Item, place: int) -> Item:
    text = f"{place} warms up."
    if item.prompt is not None:
        return msgspec.structs.replace(item, prompt=text)
    return msgspec.structs.replace(item, messages=(Message("user", text),))


def _marked(item: Item, salt: str) -> Item:
    """The same prompt behind a mark that is as long for every salt."""
    mark = f"[{hashlib.sha256(salt.encode()).hexdigest()[:8]}] "
    if item.prompt is not None:
        return msgspec.structs.replace(item, prompt=mark + item.prompt)
    first = msgspec.structs.replace(item.messages[0], content=mark + item.messages[0].content)
    return msgspec.structs.replace(item, messages=(first, *item.messages[1:]))


def with_salt(options: Options, salt: str) -> Options:
    """Options under which prompts share no prefix-cache entry with another salt."""
    body: dict[str, Any] = {**options.extra_body, "cache_salt": salt}
    return msgspec.structs.replace(options, extra_body=body)


async def _block(
    arms: Mapping[str, Arm],
    name: str,
    items: Sequence[Item],
    design: Design,
    asking: Asking,
    index: int,
    group: int,
    repeat: int,
) -> tuple[Block, Run]:
    give_turn(arms, name)
    if not asking.reuses:
        await arms[name].reset()
    before, machine, began_s = _cpu(arms), _machine_cpu_s(), time.monotonic()
    done = await run(arms[name].url, asking.model, items, design.arrivals(group), asking.options)
    ended_s = time.monotonic()  # before the arms are looked at, which may take them a command each
    after, machine_after = _cpu(arms), _machine_cpu_s()
    wall_s = max(1e-9, ended_s - began_s)
    used = {arm: later - before[arm] for arm, later in after.items() if arm in before}
    known = machine is not None and machine_after is not None and len(used) == len(arms)
    ours = sum({arms[arm].url: spent for arm, spent in used.items()}.values()) + (done.client.cpu_share or 0.0) * wall_s
    counts = [record.output_tokens for record in done.records if record.ok]
    return (
        Block(
            index=index,
            group=group,
            repeat=repeat,
            arm=name,
            started_s=began_s,
            finished_s=ended_s,
            start=design.start_of(group),
            idle_cpu={arm: spent / wall_s for arm, spent in used.items() if arms[arm].url != arms[name].url},
            foreign_cpu=max(0.0, (machine_after or 0.0) - (machine or 0.0) - ours) / wall_s if known else None,
            lateness_p99_s=done.client.lateness_p99_s,
            client_void=done.void,
            output_tokens=None if None in counts or not counts else sum(count or 0 for count in counts),
            e2e_median_s=_finite(statistics.median(record.e2e_s for record in done.records)) if done.records else None,
            concurrency=design.load_of(group) if design.rate_per_s is None else None,
        ),
        done,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cpu(arms: Mapping[str, Arm]) -> dict[str, float]:
    seen = {name: arm.observe() for name, arm in arms.items()}
    return {name: observed.cpu_s for name, observed in seen.items() if observed is not None}


def _machine_cpu_s() -> float | None:
    """CPU seconds used by all processes of the machine since it started; None where the system does not tell."""
    if not Path("/proc/stat").exists():
        return None
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))

"""Runs the five steps: in every repeat servers are started anew, and in every step all roles are asked each prompt before the
next one is, in changing order."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.startup import bring_up
from netgain.deciding.kv.asking import Asker, Seen, Window
from netgain.deciding.kv.page_cache import Forgotten, forget_files
from netgain.deciding.kv.prompts import Writer, items
from netgain.deciding.kv.settings import Settings
from netgain.deciding.kv.steps import DISK, DRAM, STEPS, TIERED, Role, StepPlan
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.observe.window import ServerWindow
from netgain.measuring.workload.item import Item

WARM_SHARE = 0.5  # of a prompt's length have those that warm a server up
WARM_PROMPTS = 4  # together more than the device has room for
WARM_BACK = 2  # of them come back
MIXED_PER = 4  # prompts for one round of mixed ones


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `windows`: by step and server, what the counters did in each repeat. `forgotten`: what is known of the
    page cache in each. `repeats` were finished; `stopped`: the run was interrupted after them."""

    seen: tuple[Seen, ...]
    windows: dict[str, dict[str, tuple[ServerWindow, ...]]]
    forgotten: tuple[Forgotten, ...]
    repeats: int
    late: int
    asked: int
    stopped: bool = False


class Conductor:
    """One experiment on servers that were made, but not started, by the caller, who also stops them."""

    def __init__(
        self,
        settings: Settings,
        servers: Mapping[str, LaunchedServer],
        folder: Path,
        narrator: Narrator,
    ) -> None:
        self._settings, self._servers, self._folder, self._narrator = settings, servers, folder, narrator
        self._seen: list[Seen] = []
        self._windows: dict[str, dict[str, list[ServerWindow]]] = {}
        self._forgotten: list[Forgotten] = []
        self._group = 0
        self._whole = (0, 0)  # finished repeats, and what was seen by then

    async def conduct(self, asker: Asker, writer: Writer) -> Trial:
        """The servers run. An interruption (cancelling) leaves the repeats that were finished, if there is one."""
        stopped = False
        try:
            for repeat in range(self._settings.form.repeats):
                await self._repeat(asker, writer, repeat)
                self._whole = (repeat + 1, len(self._seen))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._whole[0] or task is None:
                raise
            task.uncancel()
            stopped = True
        repeats, seen = self._whole
        return Trial(
            seen=tuple(self._seen[:seen]),
            windows={
                step: {name: tuple(windows[:repeats]) for name, windows in by_server.items()}
                for step, by_server in self._windows.items()
            },
            forgotten=tuple(self._forgotten[:repeats]),
            repeats=repeats,
            late=asker.late,
            asked=asker.asked,
            stopped=stopped,
        )

    async def _repeat(self, asker: Asker, writer: Writer, repeat: int) -> None:
        form = self._settings.form
        if repeat:
            await self._start_again(repeat)
        self._narrator.phase(self._named("warming up, learning the links", repeat))
        warm = items(
            [writer.text(WARM_SHARE * form.tokens) for _ in range(WARM_PROMPTS)], f"r{repeat}-warm", self._output
        )
        await self._warm_up(asker, self._servers.values(), warm)
        prompts = items([writer.text(form.tokens) for _ in range(form.prompts)], f"r{repeat}-prompt", self._output)
        rounds = max(1, form.prompts // MIXED_PER)
        mixed = items(writer.mixed(form.tokens, rounds), f"r{repeat}-mixed", self._output)
        for plan in STEPS:
            asked = mixed if plan.name == "mixed" else prompts
            if plan.name == "warm-disk":
                await self._fresh_disk(asker, warm)
            if plan.name == "saturated":
                await self._fill(asker, plan, prompts, repeat)
            self._narrator.phase(self._named(plan.title, repeat), len(asked) * len(plan.roles))
            await self._step(asker, plan, asked, repeat)

    @property
    def _output(self) -> int:
        return self._settings.output_tokens

    def _named(self, what: str, repeat: int) -> str:
        return f"{what} (repeat {repeat + 1} of {self._settings.form.repeats})"

    async def _step(self, asker: Asker, plan: StepPlan, asked: Sequence[Item], repeat: int) -> None:
        watched = [self._servers[name] for name in TIERED if any(role.server == name for role in plan.roles)]
        window = Window()
        await window.begin(watched)
        for place, item in enumerate(asked):
            for role in order(plan, place + repeat):
                record = await asker.ask(self._servers[role.server], item, role.server in TIERED)
                self._seen.append(Seen(step=plan.name, role=role.name, repeat=repeat, group=self._group, record=record))
                told = record.error if record.ttft_s is None or record.error else f"{record.ttft_s * 1e3:.0f} ms"
                self._narrator.step(f"{role.title}, {told}")
            self._group += 1
        by_server = self._windows.setdefault(plan.name, {})
        for name, seen in (await window.end(self._servers)).items():
            by_server.setdefault(name, []).append(seen)

    async def _start_again(self, repeat: int) -> None:
        """From either end in turns, as all experiments here do."""
        self._narrator.phase(self._named("starting the servers anew", repeat), len(self._servers))
        for server in self._servers.values():
            await server.stop()
        for server in list(self._servers.values())[:: 1 if repeat % 2 == 0 else -1]:
            await bring_up(server, self._settings.start_timeout_s)
            self._narrator.step(server.name)

    async def _fresh_disk(self, asker: Asker, warm: Sequence[Item]) -> None:
        """A new process, whose tier's files are on the disk alone."""
        self._narrator.phase("ending the server with the disk tier, dropping its files from memory, starting another")
        disk = self._servers[DISK]
        await disk.stop()
        await bring_up(disk, self._settings.start_timeout_s)
        forget_files(self._folder)  # also for those that teach it what its link is worth
        await self._warm_up(asker, (disk,), warm[:WARM_BACK])
        self._forgotten.append(forget_files(self._folder))

    async def _warm_up(self, asker: Asker, servers: Iterable[LaunchedServer], warm: Sequence[Item]) -> None:
        """What is built lazily is built, and tiers learn their links: the first prompts come back after others have pushed
        them out of the device."""
        for server in servers:
            stores = server.name in TIERED
            for item in (*warm, *warm[:WARM_BACK]) if stores else warm[:WARM_BACK]:
                await asker.ask(server, item, stores)

    async def _fill(self, asker: Asker, plan: StepPlan, asked: Sequence[Item], repeat: int) -> None:
        """Servers that have not had the prompts compute them once."""
        new = [role for role in plan.roles if role.server not in (DRAM, DISK)]
        self._narrator.phase(self._named("filling what has not had the prompts", repeat), len(asked) * len(new))
        for item in asked:
            for role in new:
                await asker.ask(self._servers[role.server], item, role.server in TIERED)
                self._narrator.step(role.title)


def order(plan: StepPlan, turn: int) -> tuple[Role, ...]:
    """Each role comes first, and last, as often as any other; a second request always follows the first."""
    if len({role.server for role in plan.roles}) == 1:
        return plan.roles
    at = turn % len(plan.roles)
    turned = plan.roles[at:] + plan.roles[:at]
    return turned if (turn // len(plan.roles)) % 2 == 0 else turned[::-1]

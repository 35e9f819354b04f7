"""The experiment on KV tiers: starts its servers, runs the five steps, and says of each whether it was a gain."""

import datetime
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path

import aiohttp

from netgain.cost.step_cost import StepCost
from netgain.deciding.decide.context import context
from netgain.deciding.decide.server import Served, served_model, whole_number
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.startup import bring_up, end
from netgain.deciding.kv.asking import Asker
from netgain.deciding.kv.break_even import break_evens
from netgain.deciding.kv.conduct import Conductor, Trial
from netgain.deciding.kv.judging import EACH, judge
from netgain.deciding.kv.outcome import Asked, KVExperiment, Step
from netgain.deciding.kv.prompts import Writer, tokens_per_word
from netgain.deciding.kv.servers import servers
from netgain.deciding.kv.settings import Settings
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.measurement.reference_kernels import reference_kernels
from netgain.wording import count

STEP_COST_BUDGET_S = 3.0
STEP_COST_TIMEOUT_S = 60.0
LATE_SHARE = 0.05

CANNOT_SHOW = (
    "One request at a time: with requests in the queue, loads hide behind others' prefill, and prefill saved shortens the queue.",
    "Storing is waited for before the next request, so it takes time from nobody here; where the machine is busy, it does.",
    "Prompts of one length, and one share of common beginnings: your traffic has others (netgain cache curve, netgain decide "
    "--technique kv-tiers).",
    "All servers share this machine, whose memory is the device as well as the DRAM tier.",
)


def run_experiment(settings: Settings, narrator: Narrator) -> KVExperiment:
    """Servers it started are gone, and the disk tier's folder with them, when it returns, raises or is interrupted.

    Raises UsageError for what cannot be used and Unavailable when a server does not start or answer.
    """
    return run_interruptible(experiment(settings, narrator))


async def experiment(settings: Settings, narrator: Narrator) -> KVExperiment:
    """As `run_experiment`, within a running event loop."""
    began_s = time.monotonic()
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_place(settings)))
        launched = servers(settings, folder)
        first, *others = launched.values()
        narrator.phase("starting the servers", len(launched))
        stack.push_async_callback(end, first, narrator.found)
        await bring_up(first, settings.start_timeout_s)
        narrator.step(first.name)
        served = await served_model(first.url, first.headers)
        _check_room(served, settings)
        cost, without = await _know_step_cost(first)
        for server in others:
            stack.push_async_callback(end, server, narrator.found)
            await bring_up(server, settings.start_timeout_s)
            narrator.step(server.name)
        per_word = await tokens_per_word(first, served.name)
        conductor = Conductor(settings, launched, folder, narrator)
        trial = await conductor.conduct(Asker(served.name, settings.request_timeout_s), Writer(per_word, settings.seed))
        commands = {name: server.command for name, server in launched.items()}
        narrator.phase("ending the servers, judging")
    steps = judge(trial, settings.seed)
    _check_answered(steps)
    return KVExperiment(
        created=created,
        seconds=time.monotonic() - began_s,
        asked=_asked(settings),
        confidence=EACH,
        steps=steps,
        caveats=tuple(caveats(trial, steps, without, served.told)),
        cannot_show=CANNOT_SHOW,
        server=served.told,
        commands=commands,
        context=context(),
        stopped=_stopped(trial, settings),
        break_even=break_evens(steps, trial.windows, cost, served.told),
    )


def _place(settings: Settings) -> "tempfile.TemporaryDirectory[str]":
    parent = settings.folder or settings.output
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="kv-tier-", dir=parent.resolve())
    except OSError as error:
        raise UsageError(
            f"the disk tier cannot lie in {parent} ({error.strerror or error}); name another folder"
        ) from error


def _check_room(served: Served, settings: Settings) -> None:
    longest = whole_number(served.told.get("max_model_len"))
    if longest is not None and longest < settings.longest_tokens:
        raise UsageError(
            f"the model takes {longest} tokens, and prompts of {settings.form.tokens} with their answers may need "
            f"{settings.longest_tokens}; ask for fewer (--tokens)"
        )


async def _know_step_cost(arm: Arm) -> tuple[StepCost | None, str | None]:
    """Have the engine measure what its steps cost, unless that is kept: the policy compares loads with it. Or why it could not be
    had. Servers that start later find it."""
    try:
        timeout = aiohttp.ClientTimeout(total=STEP_COST_TIMEOUT_S)
        query = {"budget_s": str(STEP_COST_BUDGET_S), "batch": "1"}
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=arm.headers) as session,
            session.get(f"{arm.url}/netgain/step-cost", params=query) as answer,
        ):
            body = await answer.read()
            if answer.status != HTTPStatus.OK:
                return None, body[:200].decode(errors="replace")
            return StepCost.from_json(body), None
    except (aiohttp.ClientError, OSError, TimeoutError, UsageError) as error:
        return None, repr(error)


def _asked(settings: Settings) -> Asked:
    form = settings.form
    return Asked(
        form="quick" if settings.quick else "full",
        model=settings.model,
        prompt_tokens=form.tokens,
        output_tokens=settings.output_tokens,
        prompts=form.prompts,
        repeats=form.repeats,
        room_tokens=settings.room_tokens,
        dram=settings.dram,
        disk=settings.disk,
        bandwidth=settings.bandwidth,
        latency=settings.latency,
        settings=settings.serve_flags,
        seed=settings.seed,
    )


def _stopped(trial: Trial, settings: Settings) -> str | None:
    if not trial.stopped:
        return None
    return f"interrupted after {trial.repeats} of {count(settings.form.repeats, 'repeat')}"


def caveats(trial: Trial, steps: tuple[Step, ...], without_cost: str | None, told: Mapping[str, object]) -> list[str]:
    """What of the run keeps its figures from being what they seem. `without_cost`: why the step cost could not be measured;
    `told`: what the servers say of themselves."""
    reference = reference_kernels("netgain", told)
    found = [] if reference is None else [reference]
    found += list(dict.fromkeys(said for one in trial.forgotten if (said := one.says) is not None))
    if without_cost is not None:
        found.append(f"What a step costs could not be measured ({without_cost}), so the policy began without it.")
    if wrong := sum(step.differing for step in steps):
        found.append(
            f"{count(wrong, 'answer')} differed from the same prompt's first one, and a raw tier promises the same tokens: this "
            "is a fault of netgain, please report it."
        )
    if trial.asked and trial.late > LATE_SHARE * trial.asked:
        found.append(
            f"The client sent {trial.late} of {trial.asked} requests late: something else used the machine meanwhile."
        )
    found += [f"{step.title}: {note}." for step in steps for note in step.notes]
    return [f"{said[:1].upper()}{said[1:]}" for said in found]


def _check_answered(steps: tuple[Step, ...]) -> None:
    """Raises Unavailable where no request at all was answered on some side."""
    for step in steps:
        for role in step.roles:
            if role.failed == role.requests:
                raise Unavailable(
                    f"no request of '{step.title}' was answered by the {role.server} server; look at {role.server}.log"
                )

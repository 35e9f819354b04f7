"""Meets two servers before any prompt is sent: what they serve, and what they say of themselves."""

import shlex

import msgspec

from netgain.deciding.compare.outcome import Side
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.compare.told import configured_traits, told_traits
from netgain.deciding.compare.traits import Trait, declared, joined
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.confounders import ArmSetup
from netgain.deciding.experiment.arms.described import setup_of
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.arms.settings_told import all_settings
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.server import Greeted, greet
from netgain.measuring.observe.names import known_engine


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it is known before the run; `ask`: how it is measured. `setup`: of a started one, its configuration."""

    ask: Ask
    greeted: Greeted
    traits: dict[str, Trait]
    side: Side
    setup: ArmSetup | None = None


async def know(settings: Settings, name: str, side: SideAsked, arm: Arm | None = None) -> Known:
    """`arm`: what was started for this side. Raises Unavailable when nothing that is OpenAI-compatible answers there, UsageError
    when it lacks the model asked for or contradicts what is declared."""
    ask = Ask(
        url=side.sources[0] if arm is None else arm.url,
        model=side.model,
        workload=settings.workload,
        concurrency=settings.concurrency,
        max_tokens=settings.form.output_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        timeout_s=settings.request_timeout_s,
        headers=side.headers,
    )
    declarations = declared(side.declared, name)
    greeted = await greet(ask)
    server = greeted.server
    told = told_traits(server)
    setup, engine = None, known_engine(server.engine)
    configuration = None
    if arm is not None and side.arm is not None:
        setup = await setup_of(arm, side.arm)
        configuration = setup.configuration
        told = {**configured_traits(server.engine, configuration or {}), **told}
        if "devices" not in told and side.arm.devices is not None:
            declarations = {"devices": Trait(side.arm.devices, "declared"), **declarations}
    if configuration is None and engine is not None:
        configuration = await effective_configuration(greeted.base, engine, headers=side.headers)
    return Known(
        ask=ask,
        greeted=greeted,
        traits=joined(told, declarations, name, greeted.base),
        side=Side(
            where=(greeted.base if arm is None else shlex.join(arm.command),),
            model=server.model,
            engine=server.engine or (None if side.arm is None else side.arm.engine),
            version=server.version,
            told=all_settings(server, configuration),
            command=None if arm is None else arm.command,
        ),
        setup=setup,
    )

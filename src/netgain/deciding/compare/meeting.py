"""Meets the two servers before any prompt is sent: what they serve, and what they say of themselves."""

import msgspec

from netgain.deciding.compare.outcome import Side
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.compare.told import all_told, told_traits
from netgain.deciding.compare.traits import Trait, declared, joined
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.server import Greeted, greet


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it is known before the run; `ask`: how it is measured."""

    ask: Ask
    greeted: Greeted
    traits: dict[str, Trait]
    side: Side


async def know(settings: Settings, name: str, side: SideAsked) -> Known:
    """Raises Unavailable when nothing that is OpenAI-compatible answers there, UsageError when it lacks the model asked for or
    contradicts what is declared."""
    ask = Ask(
        url=side.sources[0],
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
    return Known(
        ask=ask,
        greeted=greeted,
        traits=joined(told_traits(server), declarations, name, greeted.base),
        side=Side(
            where=(greeted.base,),
            model=server.model,
            engine=server.engine,
            version=server.version,
            told=all_told(server),
        ),
    )

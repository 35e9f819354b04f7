"""One request or many against a scripted server, with the server's own times to compare with."""

from collections.abc import Callable

from netgain.measuring.client.meter import ClientLoad
from netgain.measuring.client.options import Budget, Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import Run, run
from netgain.measuring.client.summary import Summary, summarise
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item, Message
from tests.measuring.scripted_server import Script, ScriptedServer, Seen

LOOSE = Budget(lateness_p99_s=5.0, loop_lag_p99_s=5.0, cpu_share=5.0)
SLACK_S = 2.0  # what a busy machine may add to a time


def items(count: int = 1, max_tokens: int = 512) -> list[Item]:
    return [
        Item(id=f"i{n}", category="c", max_tokens=max_tokens, messages=(Message("user", f"question {n}"),))
        for n in range(count)
    ]


def always(script: Script) -> Callable[[Seen], Script]:
    return lambda _: script


async def one(script: Script, **options: object) -> ClientRecord:
    """The record of a single request that is answered by `script`."""
    return (await timed(script, **options))[0]


async def timed(script: Script, **options: object) -> tuple[ClientRecord, list[float]]:
    """As `one`, with the times at which the server wrote the steps of the script."""
    async with ScriptedServer(always(script)) as server:
        result = await run(server.url, "m", items(), Closed(1), Options(budget=LOOSE, **options))  # type: ignore[arg-type]
    assert len(result.records) == 1
    return result.records[0], server.seen[0].written_s


def is_step(at_s: float | None, written_s: list[float], step: int) -> bool:
    """Whether a stamp of the client is the arrival of that step: after it was written, and before the next one was."""
    return at_s is not None and written_s[step] <= at_s < (*written_s, written_s[-1] + SLACK_S)[step + 1]


def summarise_one(record: ClientRecord) -> Summary:
    load = ClientLoad(lateness_p50_s=0.0, lateness_p99_s=0.0, loop_lag_p99_s=0.0, wall_s=1.0, cpu_s=0.0, cpu_share=0.0)
    return summarise(
        Run(
            records=(record,),
            arrivals=Closed(1),
            started_s=record.scheduled_s,
            finished_s=record.finished_s,
            steady_until_s=record.finished_s,
            unscheduled=0,
            client=load,
            void=None,
            netgain_server=False,
        )
    )

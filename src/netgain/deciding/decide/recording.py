"""The baseline's traffic, recorded with the server's metrics over it."""

import time
from collections.abc import Callable, Sequence

import msgspec

from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.conduct import Asking, warm_up
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.errors import Unavailable
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.client.run import Progress, Run, run
from netgain.measuring.observe.scrape import Observed, Watch
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item
from netgain.wording import count


async def record_baseline(
    baseline: Arm, items: Sequence[Item], asked: Asking, settings: Settings, narrator: Narrator
) -> tuple[Run, Observed]:
    """The run, and the server's metrics over it."""
    narrator.phase("measuring the baseline", len(items))
    salt = f"netgain-{settings.seed}-{time.time_ns()}-recording"
    await warm_up(baseline, items[:2], asked, salt)

    def on_progress(progress: Progress) -> None:
        narrator.step(progress.last.item_id)

    limit_s = settings.form.recording_s
    watch = Watch(f"{baseline.url}/metrics", dict(baseline.headers))
    await watch.begin()
    try:
        recorded = await answers(baseline.url, asked, salt, items, settings.concurrency, limit_s, on_progress)
        seen = await watch.end()
    finally:
        await watch.close()
    if not any(record.ok for record in recorded.records):
        first = next((record.error for record in recorded.records), "no request ended in time")
        raise Unavailable(f"the baseline answered none of {count(len(items), 'request')}; the first: {first}")
    return recorded, seen


async def answers(
    url: str,
    asked: Asking,
    salt: str,
    items: Sequence[Item],
    concurrency: int,
    limit_s: float | None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """What was answered within `limit_s`, and as many prompts more as a verdict needs: groups of one prompt alone would tell
    nothing of others. One that was cut off is asked again only where there are too few others, since the server may find it in
    its cache."""
    limited = msgspec.structs.replace(asked.under(salt), deadline_s=limit_s)
    recorded = await run(url, asked.model, items, Closed(concurrency), limited, on_progress)
    records = tuple(record for record in recorded.records if record.error_kind is not ErrorKind.DEADLINE)
    sent = {record.item_id for record in records}
    cut = {record.item_id for record in recorded.records} - sent
    left = sorted((item for item in items if item.id not in sent), key=lambda item: item.id in cut)
    missing = left[: max(0, FEWEST_UNITS - len(sent))]
    if missing:
        records += (await run(url, asked.model, missing, Closed(concurrency), asked.under(salt), on_progress)).records
    return msgspec.structs.replace(recorded, records=records)

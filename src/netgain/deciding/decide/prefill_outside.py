"""What computing a prompt costs on an engine that does not tell it: new prompts of several lengths, alone, to their first
token."""

import statistics
import time

from netgain.cost.step_cost import StepPoint
from netgain.deciding.experiment.conduct import Asking
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

WORDS = (8, 128, 512, 1024)  # of about one token each; the server's own count is what a point says
_TEXT = (
    "the",
    "old",
    "house",
    "by",
    "the",
    "river",
    "was",
    "painted",
    "white",
    "and",
    "its",
    "garden",
    "ran",
    "down",
    "to",
)
REPEATS = 3
BUDGET_S = 60.0
FEWEST_LENGTHS = 2
PREFILL_BASIS = "measured from outside (new prompts of several lengths, alone, from sending to the first token)"
NO_PREFILL = (
    "prompts of two lengths could not be measured from outside: the server has to tell how many tokens a prompt has (usage "
    "in its "
    "answers), and to take prompts of some hundred tokens"
)


async def prefill_outside(url: str, asking: Asking, budget_s: float = BUDGET_S) -> tuple[StepPoint, ...]:
    """By length as the server counts it, the median of some repeats; a wait that is part of every request, such as the
    client's, is in all of them. Lengths that the server refuses are left out, as is what would begin after `budget_s` once
    there are two."""
    began_s = time.monotonic()
    points: dict[int, StepPoint] = {}

    def spent() -> bool:
        return time.monotonic() - began_s >= budget_s

    for words in WORDS:
        if len(points) >= FEWEST_LENGTHS and spent():
            break
        waited, lengths = list[float](), list[int]()
        for repeat in range(REPEATS):
            if waited and spent():
                break
            text = f"{time.time_ns()} {repeat} " + " ".join(_TEXT[n % len(_TEXT)] for n in range(words))
            item = Item(id=f"prefill-{words}-{repeat}", category="prefill", max_tokens=1, prompt=text)
            done = await run(url, asking.model, [item], Closed(1), asking.under(f"prefill-{time.time_ns()}"))
            record = done.records[0]
            if not record.ok or record.ttft_s is None or not record.prompt_tokens:
                break
            waited.append(record.ttft_s)
            lengths.append(record.prompt_tokens - (record.cached_tokens or 0))
        if waited:
            tokens = max(1, round(statistics.median(lengths)))
            points[tokens] = StepPoint(
                batch=1, tokens=tokens, context=0, seconds=statistics.median(waited), repeats=len(waited)
            )
    return tuple(points.values())

"""Asks a server every task and scores what it says. A task that fails is named and counted; its score is unknown."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import Progress, run
from netgain.measuring.quality.matching import grade
from netgain.measuring.quality.scorer_command import ScorerCommand, ScorerFailed
from netgain.measuring.quality.tasks import Task
from netgain.measuring.workload.arrivals import Closed

_SHOWN = 500  # characters of an answer that are kept


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One task as it was answered. `score` is None with the reason in `problem`; `text` is the beginning of the answer."""

    task: str
    category: str
    score: float | None
    problem: str | None
    text: str


class TaskScores(msgspec.Struct, frozen=True, kw_only=True):
    """All answers of one server. `mean` is over the answers with a score, None without any; `failed` have none."""

    answers: tuple[Answer, ...]
    mean: float | None
    failed: int
    by_category: dict[str, float]

    @property
    def scores(self) -> dict[str, float | None]:
        return {answer.task: answer.score for answer in self.answers}


async def answer_tasks(
    url: str,
    model: str,
    tasks: Sequence[Task],
    scorer: ScorerCommand | None,
    *,
    concurrency: int = 2,
    timeout_s: float = 120.0,
    headers: dict[str, str] | None = None,
    seed: int = 0,
    on_done: Callable[[str], None] | None = None,
) -> TaskScores:
    """Greedy answers, each task once. `scorer` is needed for tasks whose match is `scorer`."""

    def progress(seen: Progress) -> None:
        if on_done is not None:
            on_done(seen.last.item_id)

    done = await run(
        url,
        model,
        [task.item(seed) for task in tasks],
        Closed(concurrency),
        Options(timeout_s=timeout_s, headers=headers or {}, running_usage=False),
        progress,
    )
    records = {record.item_id: record for record in done.records}
    places = asyncio.Semaphore(concurrency)

    async def judge(task: Task) -> Answer:
        async with places:
            return await _judge(task, records.get(task.id), scorer)

    answers = tuple(await asyncio.gather(*map(judge, tasks)))
    return TaskScores(
        answers=answers,
        mean=_mean(answers),
        failed=sum(answer.score is None for answer in answers),
        by_category={
            category: mean
            for category in dict.fromkeys(answer.category for answer in answers)
            if (mean := _mean([answer for answer in answers if answer.category == category])) is not None
        },
    )


async def _judge(task: Task, record: ClientRecord | None, scorer: ScorerCommand | None) -> Answer:
    score, problem = None, None
    if record is None or not record.ok:
        problem = "it was not answered" if record is None else f"it was not answered: {record.error}"
    elif task.match == "scorer" and scorer is not None:
        try:
            score = await scorer.score(task, record.text)
        except ScorerFailed as failure:
            problem = str(failure)
    else:
        score = grade(task, record.text)
    return Answer(
        task=task.id,
        category=task.category,
        score=score,
        problem=problem,
        text="" if record is None else record.text[:_SHOWN],
    )


def _mean(answers: Sequence[Answer]) -> float | None:
    known = [answer.score for answer in answers if answer.score is not None]
    return sum(known) / len(known) if known else None

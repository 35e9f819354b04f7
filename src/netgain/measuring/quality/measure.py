"""Measures the quality of one server, or of two beside each other, over HTTP."""

import importlib.metadata
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.quality.answering import TaskScores, answer_tasks
from netgain.measuring.quality.behind_chunks import score_behind_chunks
from netgain.measuring.quality.behind_loaded import score_computed, score_loaded
from netgain.measuring.quality.divergence import Divergence, divergence
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.near_ties import Sameness, compare_answers
from netgain.measuring.quality.paired_scores import MARGIN, Paired, compare_scores
from netgain.measuring.quality.perplexity import perplexity_of
from netgain.measuring.quality.result import Quality, QualityComparison, ServerQuality, loaded_of
from netgain.measuring.quality.scorer_command import ScorerCommand
from netgain.measuring.quality.tasks import Task, load_tasks
from netgain.measuring.quality.teacher_forcing import Form, Scored, Teacher, Unscored
from netgain.measuring.quality.texts import BUNDLED, PIECE_CHARACTERS, Text, load_texts

ANSWER_TOKENS = 32
ANSWER_PROMPTS = 24
_PROMPT_CHARACTERS = 400


class QualityAsk(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `texts`: "bundled", a file, or "none". `texts_given` are scored on top, such as recorded conversations,
    and `tasks_given` are asked on top of a file's.

    `answers`: how many texts are also continued greedily by both servers, to see where they part. `margin`: by how much the
    mean task score may be lower and still count as not worse (0.01 = 1 percentage point). `against_headers`: for the second
    server, where it needs others than the first.
    """

    url: str
    against: str | None = None
    model: str | None = None
    against_model: str | None = None
    texts: str = BUNDLED
    texts_given: tuple[Text, ...] = ()
    most_texts: int | None = None
    piece_characters: int = PIECE_CHARACTERS
    answers: int = ANSWER_PROMPTS
    tasks: str | None = None
    tasks_given: tuple[Task, ...] = ()
    scorer: str | None = None
    scorer_timeout_s: float = 30.0
    margin: float = MARGIN
    concurrency: int = 2
    timeout_s: float = 120.0
    seed: int = 0
    headers: dict[str, str] = {}
    against_headers: dict[str, str] | None = None

    def __post_init__(self) -> None:
        base_url(self.url)
        if self.against is not None:
            base_url(self.against)
        if not 0.0 < self.margin < 1.0:
            raise UsageError(f"the margin is {self.margin}; give a share such as 0.01 for 1 percentage point")
        if self.scorer is not None and self.tasks is None:
            raise UsageError("a scorer judges the answers to tasks; give them with --tasks FILE")
        if self.texts == "none" and not self.texts_given and self.tasks is None:
            raise UsageError(
                "without texts and without tasks there is nothing to measure; give --tasks FILE or --texts"
            )


async def measure_quality(ask: QualityAsk, narrator: Narrator) -> Quality:
    """Raises UsageError for input that cannot be used and Unavailable when a server does not answer at all."""
    began_s, began_unix_s = time.monotonic(), time.time()
    texts = (*ask.texts_given, *(() if ask.texts == "none" else load_texts(ask.texts, ask.piece_characters)))
    texts = texts[: ask.most_texts]
    scorer = None if ask.scorer is None else ScorerCommand(ask.scorer, ask.scorer_timeout_s)
    tasks = (*ask.tasks_given, *(() if ask.tasks is None else load_tasks(Path(ask.tasks), scorer is not None)))
    async with AsyncExitStack() as stack:
        teachers = [
            await stack.enter_async_context(
                Teacher(url, model, timeout_s=ask.timeout_s, concurrency=ask.concurrency, headers=headers)
            )
            for url, model, headers in (
                (ask.url, ask.model, ask.headers),
                (ask.against, ask.against_model, ask.headers if ask.against_headers is None else ask.against_headers),
            )
            if url is not None
        ]
        scored = await _score(teachers, texts, narrator)
        sameness = await _answers(teachers, texts[: ask.answers], narrator) if len(teachers) > 1 else "one server"
        answered = [await _tasks(teacher, tasks, scorer, ask, narrator) for teacher in teachers]
    servers = [_server(teacher, found, own) for teacher, found, own in zip(teachers, scored, answered, strict=True)]
    return Quality(
        netgain=importlib.metadata.version("netgain"),
        began_unix_s=began_unix_s,
        seconds=time.monotonic() - began_s,
        texts=ask.texts,
        task_file=ask.tasks,
        scorer=ask.scorer,
        baseline=servers[0],
        candidate=servers[1] if len(servers) > 1 else None,
        comparison=_compare(scored, sameness, answered, ask) if len(servers) > 1 else None,
    )


Found = tuple[Form, list[Scored | Unscored]] | str  # a sentence: why this server can score nothing


async def _score(teachers: Sequence[Teacher], texts: Sequence[Text], narrator: Narrator) -> list[Found]:
    """In the form that all servers can be asked in; a server that can in none does not keep the other from its perplexity. Where
    one has lossy KV tiers, its answers come behind KV that it loaded, and all are scored on the same halves of the texts. Where
    one joins chunks and texts have some, these are scored, on what follows their chunks."""
    if any(teacher.joins_chunks for teacher in teachers) and any(text.chunks for text in texts):
        return await _score_behind_chunks(teachers, [text for text in texts if text.chunks], narrator)
    if not texts:
        return ["no texts were given"] * len(teachers)
    forms = [await teacher.find_form(texts[0], of_prompt=True) for teacher in teachers]
    able = [form for form in forms if isinstance(form, Form)]
    loading = any(teacher.lossy_tiers for teacher in teachers)
    narrator.phase("scoring texts behind KV loaded from tiers" if loading else "scoring texts", len(texts) * len(able))
    found: list[Found] = []
    for teacher, form in zip(teachers, forms, strict=True):
        if isinstance(form, str):
            found.append(form)
            continue
        for other in able:
            form = form.with_other(other)
        score = None if not loading else score_loaded if teacher.lossy_tiers else score_computed
        found.append((form, await teacher.score_all(texts, form, narrator.step, score)))
    return found


async def _score_behind_chunks(teachers: Sequence[Teacher], texts: Sequence[Text], narrator: Narrator) -> list[Found]:
    plain = msgspec.structs.replace(texts[0], chunks=(), behind=0)
    forms = [await teacher.find_form(plain, of_prompt=True) for teacher in teachers]
    able = [form for form in forms if isinstance(form, Form)]
    narrator.phase("scoring what follows chunks", len(texts) * len(able))
    found: list[Found] = []
    for teacher, form in zip(teachers, forms, strict=True):
        if isinstance(form, str):
            found.append(form)
            continue
        for other in able:
            form = form.with_other(other)
        found.append((form, await teacher.score_all(texts, form, narrator.step, score_behind_chunks)))
    return found


async def _answers(teachers: Sequence[Teacher], texts: Sequence[Text], narrator: Narrator) -> Sameness | str:
    """Both servers continue the beginnings of the same texts."""
    if not texts:
        return "no texts were given"
    starts = [
        msgspec.structs.replace(
            text, prompt=text.prompt[: _PROMPT_CHARACTERS if isinstance(text.prompt, str) else _PROMPT_CHARACTERS // 4]
        )
        for text in texts
    ]
    forms = [await teacher.find_form(starts[0], of_prompt=False) for teacher in teachers]
    able = [form for form in forms if isinstance(form, Form)]
    if len(able) < len(teachers):
        reasons = (f"{teacher.base}: {form}" for teacher, form in zip(teachers, forms, strict=True) if form not in able)
        return "; ".join(reasons)
    form = able[0].with_other(able[1])
    narrator.phase("comparing greedy answers", len(starts))
    pairs: list[tuple[str, Sequence[Law], Sequence[Law]]] = []
    for start in starts:
        said = [await teacher.say(start, form, ANSWER_TOKENS) for teacher in teachers]
        known = [one for one in said if not isinstance(one, Unscored)]
        if len(known) == 2:
            pairs.append((start.name, known[0], known[1]))
        narrator.step(start.name)
    return compare_answers(pairs) or "no prompt was answered by both servers"


async def _tasks(
    teacher: Teacher, tasks: Sequence[Task], scorer: ScorerCommand | None, ask: QualityAsk, narrator: Narrator
) -> TaskScores | None:
    if not tasks:
        return None
    narrator.phase(f"asking tasks of {teacher.base}", len(tasks))
    return await answer_tasks(
        teacher.base,
        teacher.model,
        tasks,
        scorer,
        concurrency=ask.concurrency,
        timeout_s=ask.timeout_s,
        headers=teacher.headers,
        seed=ask.seed,
        on_done=narrator.step,
    )


def _server(teacher: Teacher, found: Found, tasks: TaskScores | None) -> ServerQuality:
    scored = [] if isinstance(found, str) else [one for one in found[1] if isinstance(one, Scored)]
    unscored = () if isinstance(found, str) else tuple(one for one in found[1] if isinstance(one, Unscored))
    perplexity = perplexity_of(scored)
    missing = None
    if perplexity is None:
        missing = found if isinstance(found, str) else f"no text could be scored; the first: {unscored[0].reason}"
    return ServerQuality(
        url=teacher.base,
        model=teacher.model,
        perplexity=perplexity,
        perplexity_missing=missing,
        unscored=unscored,
        tasks=tasks,
        loaded=loaded_of(scored),
    )


def _compare(
    scored: Sequence[Found], sameness: Sameness | str, answered: Sequence[TaskScores | None], ask: QualityAsk
) -> QualityComparison:
    apart = _divergence(scored)
    paired: Paired | None = None
    ours, theirs = answered
    if ours is not None and theirs is not None:
        paired = compare_scores(ours.scores, theirs.scores, ask.margin, ask.seed)
    return QualityComparison(
        divergence=apart if isinstance(apart, Divergence) else None,
        divergence_missing=apart if isinstance(apart, str) else None,
        sameness=sameness if isinstance(sameness, Sameness) else None,
        sameness_missing=sameness if isinstance(sameness, str) else None,
        tasks=paired,
        tasks_missing=None
        if paired is not None
        else "no task set was given"
        if ask.tasks is None and not ask.tasks_given
        else "no task has a score from both servers",
    )


def _divergence(scored: Sequence[Found]) -> Divergence | str:
    ours, theirs = scored
    if isinstance(ours, str):
        return f"the baseline gives no log-probabilities of prompts: {ours}"
    if isinstance(theirs, str):
        return f"the candidate gives no log-probabilities of prompts: {theirs}"
    sides = [[one for one in found if isinstance(one, Scored)] for _, found in (ours, theirs)]
    return divergence(sides[0], sides[1], ours[0].top)

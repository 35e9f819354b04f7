"""Questions over several chunks with one right answer among several: generated, or the user's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from netgain.errors import UsageError

Kind = Literal["one fact", "two facts", "given"]
OPENING = "Read these reports.\n\n"
_PLACES = (
    "Velden",
    "Arkona",
    "Lindau",
    "Porvoo",
    "Sorano",
    "Tarifa",
    "Ystad",
    "Kotor",
    "Brest",
    "Ohrid",
    "Narva",
    "Lagos",
)
_KEEPERS = ("Anna", "Boris", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "James", "Karen", "Louis")
_GOODS = ("salt", "wool", "tea", "copper", "glass", "paper", "rice", "silver", "timber", "honey", "cotton", "coal")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt is `opening`, the chunks, then `question`, which the answer follows at once. `answers`: the right one first,
    then others that the chunks hold, too; without any nothing is scored. `kind` says what must be put together."""

    chunks: tuple[str, ...]
    question: str
    answers: tuple[str, ...] = ()
    opening: str = OPENING
    kind: Kind = "given"

    @property
    def chance(self) -> float:
        """Of being right by guessing."""
        return 1.0 / len(self.answers) if self.answers else 0.0


def generated(count: int, chunks: int, seed: int = 0) -> list[Question]:
    """Half of them ask for one fact of one chunk, half for a fact that follows from two. Every name stands for one thing only,
    so the answer cannot be known beforehand. At most 12 chunks."""
    if not 2 <= chunks <= len(_PLACES):
        raise UsageError(f"questions are over 2 to {len(_PLACES)} chunks, not {chunks}")
    return [_one(random.Random(f"{seed} {number}"), chunks, number % 2 == 1) for number in range(count)]


def read_questions(path: Path) -> list[Question]:
    """One JSON object a line, with the fields of Question. Raises UsageError naming the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"the questions {path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=Question)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        if not one.chunks or not all(one.chunks) or not one.question:
            raise UsageError(f"{path}, line {number}: a question needs chunks and a question that are not empty")
        if len(one.answers) == 1:
            raise UsageError(
                f"{path}, line {number}: give at least one wrong answer beside the right one, or none at all"
            )
        found.append(one)
    if not found:
        raise UsageError(f"{path} holds no question")
    return found


def _one(source: random.Random, chunks: int, two: bool) -> Question:
    places, keepers = source.sample(_PLACES, chunks), source.sample(_KEEPERS, chunks)
    goods = source.sample(_GOODS, chunks)
    cargo = dict(zip(source.sample(keepers, chunks), goods, strict=True))  # whose goods are told in any other report
    traders = list(cargo)
    texts = tuple(
        f"Report on the harbour of {place}. It was built in {source.randint(1700, 1950)} and has {source.randint(3, 40)} "
        f"berths. The keeper of the harbour of {place} is {keeper}. The water there is {source.randint(4, 30)} metres deep "
        f"and the pier is painted every spring. It is known that the trade of {trader} is {cargo[trader]}.\n\n"
        for place, keeper, trader in zip(places, keepers, traders, strict=True)
    )
    asked = source.randrange(chunks)
    keeper = keepers[asked]
    if two:
        right, others = cargo[keeper], [one for one in goods if one != cargo[keeper]]
        text = (
            f"Question: What does the keeper of the harbour of {places[asked]} trade in?\n"
            f"Answer: The keeper of the harbour of {places[asked]} trades in"
        )
    else:
        right, others = keeper, [one for one in keepers if one != keeper]
        text = (
            f"Question: Who is the keeper of the harbour of {places[asked]}?\n"
            f"Answer: The keeper of the harbour of {places[asked]} is"
        )
    answers: Sequence[str] = (f" {right}", *(f" {other}" for other in others))
    return Question(chunks=texts, question=text, answers=tuple(answers), kind="two facts" if two else "one fact")

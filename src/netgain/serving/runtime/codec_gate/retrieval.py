"""Made-up facts whose answers stand in the prompt: what a model finds there, it finds through its KV and nowhere else."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

FACTS = 12
QUESTIONS = 8
PASSAGES = 48  # so that a codec that loses no answer can be told from one that loses two in a hundred
_COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey", "silver", "golden")
_THINGS = ("lamp", "chair", "kettle", "violin", "ladder", "basket", "clock", "mirror", "drum", "bicycle")

Encode = Callable[[str], list[int]]


class Question(NamedTuple):
    """Tokens behind the passage; the last `answer` of them are what has to be found."""

    tokens: list[int]
    answer: int


class Passage(NamedTuple):
    tokens: list[int]
    questions: list[Question]


def passages(encode: Encode, count: int = PASSAGES) -> list[Passage]:
    """So many passages of 12 facts, 8 questions about each; the same for every model. A tokenizer that cuts a passage otherwise
    once a question follows gives the tokens before the difference to the passage."""
    choice = np.random.default_rng(7)
    made = []
    for _ in range(count):
        things = choice.permutation(len(_COLOURS) * len(_THINGS))[:FACTS]
        facts = [
            (f"The {_COLOURS[thing // len(_THINGS)]} {_THINGS[thing % len(_THINGS)]}", int(choice.integers(100, 1000)))
            for thing in things
        ]
        told = (
            "Inventory of the house.\n" + "\n".join(f"{what} is kept in room {room}." for what, room in facts) + "\n\n"
        )
        asked = []
        for number in choice.permutation(FACTS)[:QUESTIONS]:
            what, room = facts[number]
            head = f"{told}Question: Where is {what.lower()} kept?\nAnswer: {what} is kept in room"
            asked.append((encode(head), encode(f"{head} {room}.")))
        made.append(_passage(encode(told), asked))
    return made


def _passage(told: list[int], asked: list[tuple[list[int], list[int]]]) -> Passage:
    shared = min([len(told), *(_alike(told, whole) for _, whole in asked)])
    questions = []
    for head, whole in asked:
        known = _alike(head, whole)
        end = len(whole) - 1  # the full stop is nothing to find
        questions.append(Question(whole[shared:end], end - known))
    return Passage(told[:shared], questions)


def _alike(one: list[int], other: list[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

"""What is asked: Spec-Bench's six groups and copying, and the bundled workloads for the control of drafts."""

import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from benchmarks.peers.prompts import items as words
from netgain.errors import UsageError
from netgain.measuring.workload.item import Item, Message
from netgain.measuring.workload.load import bundled_names, load_workload

COPY = "copy"
PLAIN, PLAIN_TOKENS, PLAIN_PROMPTS = (
    "decode",
    128,
    16,
)  # what the peers benchmark asks of one stream: so many in and out
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "multi_turn"
        ),
        "translation": "translation",
        "summarization": "summarization",
        "qa": "qa",
        "math_reasoning": "math_reasoning",
        "rag": "rag",
    }
)
"""Category of a question -> group of Spec-Bench's tables."""
_HERE = Path(__file__).resolve()


class _Question(msgspec.Struct):
    question_id: int
    category: str
    turns: tuple[str, ...]


def default_data() -> Path | None:
    """`shared/data/prompts/spec_bench.jsonl` in or beside the checkout."""
    found = (base / "shared/data/prompts/spec_bench.jsonl" for base in _HERE.parents)
    return next((path for path in found if path.is_file()), None)


def categories(path: Path | None, max_tokens: int) -> dict[str, tuple[Item, ...]]:
    """Copying (the bundled workload `edit`) and, where the file is there, every group of Spec-Bench, each in an order drawn
    once for all. Of questions with two turns the first is asked. Raises UsageError for a file that is none of Spec-Bench's."""
    found = {COPY: load_workload("edit").items}
    if path is not None:
        found |= _spec_bench(path, max_tokens)
    return {name: _mixed(name, items) for name, items in found.items()}


def plain() -> dict[str, tuple[Item, ...]]:
    """Prompts of the very length, words and answers by which the peers benchmark measures one stream."""
    return {PLAIN: tuple(words(PLAIN_PROMPTS, PLAIN_TOKENS, PLAIN_TOKENS, "speculation"))}


def waves(pools: Mapping[str, tuple[Item, ...]], max_tokens: int) -> dict[str, tuple[Item, ...]]:
    """The same questions for several requests at once, their answers cut at `max_tokens`."""
    return {name: _cut(items, max_tokens) for name, items in pools.items()}


def workloads(max_tokens: int) -> dict[str, tuple[Item, ...]]:
    """The bundled ones, their answers cut at `max_tokens`."""
    return {name: _mixed(name, _cut(load_workload(name).items, max_tokens)) for name in bundled_names()}


def _spec_bench(path: Path, max_tokens: int) -> dict[str, tuple[Item, ...]]:
    groups: dict[str, list[Item]] = {name: [] for name in dict.fromkeys(GROUPS.values())}
    try:
        lines = path.read_bytes().splitlines()
        for line in lines:
            question = msgspec.json.decode(line, type=_Question)
            asked = (Message("user", question.turns[0]),)
            item = Item(
                id=f"q{question.question_id}", category=question.category, max_tokens=max_tokens, messages=asked
            )
            groups[GROUPS[question.category]].append(item)
    except (OSError, msgspec.MsgspecError, KeyError, IndexError) as error:
        raise UsageError(f"{path} is not Spec-Bench's question file: {error!r}; give its path with --data") from error
    return {name: tuple(items) for name, items in groups.items() if items}


def _cut(items: tuple[Item, ...], max_tokens: int) -> tuple[Item, ...]:
    return tuple(msgspec.structs.replace(item, max_tokens=min(item.max_tokens, max_tokens)) for item in items)


def _mixed(name: str, items: tuple[Item, ...]) -> tuple[Item, ...]:
    order = list(items)
    random.Random(name).shuffle(order)
    return tuple(order)

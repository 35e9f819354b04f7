"""A workload: prompts with their limits and sampling settings, the same for every arm of an experiment."""

import hashlib
from collections import defaultdict
from typing import Literal

import msgspec

from netgain.errors import UsageError

_LARGEST = 2**63 - 1  # what servers read into 64 bits


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request: either `messages` (chat) or `prompt` (plain completion).

    `context` names the messages that it shares with other items, if it does. Sampling fields that are None are not sent:
    the server's default holds. `temperature` 0 is greedy. `chunks` are pieces of the text, such as retrieved documents, which
    servers that join chunks are told of; all others get the same text. `documents` names those that came from the workload's
    own. `answers`: a right answer holds one of them; empty: nobody says what is right.
    """

    id: str
    category: str
    max_tokens: int
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    context: str | None = None
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    documents: tuple[str, ...] = ()
    chunks: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def prompt_digest(self) -> str:
        """SHA-256 of what is asked: the messages or the prompt, without limits and sampling."""
        asked = self.prompt if self.prompt is not None else self.messages
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()

    def problem(self) -> str | None:
        """What makes this item impossible to send, or None."""
        checks = (
            (not self.id, "id is empty"),
            (not self.category, "category is empty"),
            (bool(self.messages) == (self.prompt is not None), "give either messages or prompt"),
            (self.prompt == "", "prompt is empty"),
            (not 1 <= self.max_tokens <= _LARGEST, f"max_tokens is {self.max_tokens}; it must lie in [1, 2^63)"),
            (not 0.0 <= self.temperature <= 2.0, f"temperature is {self.temperature}; it must lie in [0, 2]"),
            (self.top_p is not None and not 0.0 < self.top_p <= 1.0, f"top_p is {self.top_p}; it must lie in (0, 1]"),
            (
                self.top_k is not None and not 1 <= self.top_k <= _LARGEST,
                f"top_k is {self.top_k}; it must lie in [1, 2^63)",
            ),
            (
                self.seed is not None and not -_LARGEST - 1 <= self.seed <= _LARGEST,
                f"seed is {self.seed}; it must lie in [-2^63, 2^63)",
            ),
            ("" in self.stop, "stop holds an empty text, which would end every answer at once"),
            ("" in self.answers, "answers holds an empty text, which every answer would hold"),
            ("" in self.chunks, "chunks holds an empty text"),
            (not self._holds_chunks(), "chunks holds a text that does not stand in the prompt"),
        )
        return next((text for wrong, text in checks if wrong), None)

    def _holds_chunks(self) -> bool:
        texts = [self.prompt or "", *(message.content for message in self.messages)]
        return all(any(chunk in text for text in texts) for chunk in self.chunks)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Named items in a fixed order. Ids are unique, so that two arms can be paired by prompt.

    `synthetic`: the texts are made up, only lengths and shared beginnings are real, so nothing that depends on what a text
    says may be concluded. `notes` are for whoever reads a result.
    """

    name: str
    items: tuple[Item, ...]
    synthetic: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.items:
            raise UsageError(f"workload {self.name!r} has no items; give at least one prompt")
        seen: set[str] = set()
        for item in self.items:
            if problem := item.problem():
                raise UsageError(f"workload {self.name!r}, item {item.id!r}: {problem}")
            if item.id in seen:
                raise UsageError(f"workload {self.name!r}: the id {item.id!r} occurs twice; ids must be unique")
            seen.add(item.id)

    @property
    def categories(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(item.category for item in self.items))

    @property
    def digest(self) -> str:
        """SHA-256 of the items: two results with the same digest ran the same prompts."""
        return hashlib.sha256(msgspec.json.encode(self.items)).hexdigest()

    @property
    def texts_digest(self) -> str:
        """SHA-256 of the prompts alone, in their order: the same whatever the limits and the sampling are."""
        return hashlib.sha256("".join(item.prompt_digest for item in self.items).encode()).hexdigest()

    def subset(self, count: int) -> "Workload":
        """The quick form: the first `count` items when categories take turns, in the workload's order.

        Always the same items for the same count, and a smaller subset lies inside a larger one.
        """
        if count < 1:
            raise UsageError(f"a subset of {count} items was asked of workload {self.name!r}; ask for at least 1")
        if count >= len(self.items):
            return self
        turn: dict[str, int] = defaultdict(int)
        ranked: list[tuple[int, int, int]] = []
        order = {category: place for place, category in enumerate(self.categories)}
        for place, item in enumerate(self.items):
            ranked.append((turn[item.category], order[item.category], place))
            turn[item.category] += 1
        chosen = sorted(place for _, _, place in sorted(ranked)[:count])
        return msgspec.structs.replace(self, items=tuple(self.items[place] for place in chosen))

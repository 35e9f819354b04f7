"""What a draft is trained on: prompts of the user's, or a bundled set that is put together from topics and ways to ask."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from netgain.errors import NetgainError, UsageError
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.tokenizer import Tokenizer

HELD_OUT = 12  # one prompt of so many is kept apart to measure what was learnt

_EXAMPLE = '{"messages": [{"role": "user", "content": "..."}]}, {"prompt": "..."} or {"turns": ["..."]}'


class Prompt(msgspec.Struct, frozen=True):
    """One thing to answer: a conversation, or (`text`) the beginning of a text."""

    messages: tuple[dict[str, Any], ...] = ()
    text: str | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def held_out(self) -> bool:
        """Decided by what is asked alone, so the same prompt is on the same side in every run."""
        return int(self.digest[:8], 16) % HELD_OUT == 0


class _Line(msgspec.Struct):
    """A line of a workload, of a chat log or of Spec-Bench; whatever else it says is passed over."""

    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    turns: tuple[str, ...] | None = None
    define: str | None = None
    context: str | None = None


def split(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """Those to learn from, and those held out: decided by what is asked, but for lists so short that one side would be empty.
    A single prompt is learnt from, and nothing is held out."""
    taught = [prompt for prompt in prompts if not prompt.held_out]
    held = [prompt for prompt in prompts if prompt.held_out]
    if not held:
        taught, held = taught[:1] + taught[2:], taught[1:2]
    if not taught:
        taught, held = held[:1], held[1:]
    return taught, held


def digest(prompts: Sequence[Prompt]) -> str:
    return hashlib.sha256("".join(prompt.digest for prompt in prompts).encode()).hexdigest()


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """From a JSONL file (.jsonl: one object a line), or from a text of one prompt a line. The same prompt counts once.

    Raises UsageError that names the file and the faulty line.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"the prompts in {path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    found = _objects(path, lines) if path.suffix == ".jsonl" else [_asked(line.strip()) for _, line in lines]
    if not found:
        raise UsageError(f"{path} holds no prompts; write one a line, or JSON objects in a .jsonl file")
    return tuple({prompt.digest: prompt for prompt in found}.values())


def _objects(path: Path, lines: Sequence[tuple[int, str]]) -> list[Prompt]:
    contexts: dict[str, tuple[dict[str, Any], ...]] = {}
    found = []
    for number, line in lines:
        try:
            said = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}, line {number}: {error}; each line is an object like {_EXAMPLE}") from error
        if said.define is not None:
            contexts[said.define] = said.messages or ()
        elif said.messages:
            if said.context is not None and said.context not in contexts:
                raise UsageError(f"{path}, line {number}: the context {said.context!r} is not defined above this line")
            before = contexts[said.context] if said.context is not None else ()
            found.append(Prompt(messages=(*before, *said.messages)))
        elif said.turns:
            found.append(_asked(said.turns[0]))
        elif said.prompt:
            found.append(Prompt(text=said.prompt))
        else:
            raise UsageError(f"{path}, line {number}: holds nothing to answer; write {_EXAMPLE}")
    return found


def bundled_prompts() -> tuple[Prompt, ...]:
    """Every way to ask about every topic, in an order that mixes both and is always the same."""
    asked = [prompt for prompts in bundled_by_kind().values() for prompt in prompts]
    random.Random(20).shuffle(asked)
    return tuple(asked)


def bundled_by_kind() -> dict[str, list[Prompt]]:
    """The same prompts by what they ask for: things, advice, writing, code, sums, rewriting."""
    held = msgspec.json.decode(files("netgain.serving.training").joinpath("asking.json").read_bytes())
    return {
        kind: [_asked(way.replace("{}", topic)) for way in part["ways"] for topic in part["topics"]]
        for kind, part in sorted(held.items())
    }


def encoded(prompt: Prompt, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """As the server would read it. A model without a template gets what was said as plain text.

    Raises UsageError for messages that the template refuses."""
    if prompt.text is not None:
        return tokenizer.encode(prompt.text, start=True)
    if template is None:
        return tokenizer.encode("\n\n".join(str(one.get("content")) for one in prompt.messages), start=True)
    try:
        return template.encode(tokenizer, list(prompt.messages))
    except NetgainError as error:
        raise UsageError(f"the model's template refuses the prompt {str(prompt.messages)[:80]}: {error}") from error


def _asked(text: str) -> Prompt:
    return Prompt(messages=({"role": "user", "content": text},))

"""What a model thinks before it answers, split from the answer; the rest of the text goes to a reader of tool calls."""

import re
from dataclasses import dataclass

from netgain.serving.api.parsing.parts import OutputParser, Part, Reasoning
from netgain.serving.api.parsing.source import Reading, Source

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class ReasoningForm:
    """The tags around the thoughts, which come first if at all."""

    opener: str
    closer: str

    @property
    def markers(self) -> frozenset[str]:
        return frozenset({self.opener, self.closer})


# Qwen3, DeepSeek-R1 and its distillations, SmolLM3.
THINK = ReasoningForm("<think>", "</think>")
# Magistral and later.
MISTRAL = ReasoningForm("[THINK]", "[/THINK]")


class ReasoningParser:
    """Thoughts, then what `answer` makes of the rest. `inside`: the prompt has opened the thoughts already.

    White space between tags and text belongs to neither. Thoughts without an end go on to the end of the text.
    """

    def __init__(self, form: ReasoningForm, answer: OutputParser, inside: bool) -> None:
        self._form = form
        self._answer = answer
        self._inside = inside
        self._source = Source()
        self._other = re.compile(rf"[^\s{re.escape(form.closer[0])}]*")
        self._thoughts: list[str] = []
        self._over = False
        self._reading = self._thinking()
        next(self._reading, None)

    def feed(self, text: str) -> list[Part]:
        if self._over:
            return self._answer.feed(text)
        self._source.add(text)
        next(self._reading, None)
        return self._take()

    def finish(self) -> list[Part]:
        self._source.end()
        next(self._reading, None)
        return [*self._take(), *self._answer.finish()]

    def _take(self) -> list[Part]:
        thoughts = "".join(self._thoughts)
        self._thoughts.clear()
        parts: list[Part] = [Reasoning(thoughts)] if thoughts else []
        rest = self._source.rest() if self._over else ""
        return [*parts, *self._answer.feed(rest)] if rest else parts

    def _thinking(self) -> Reading[None]:
        source = self._source
        yield from source.all(_SPACE)
        opened = yield from source.literal((self._form.opener,))
        if not opened and not self._inside:
            source.at = 0
            self._over = True
            return
        yield from source.all(_SPACE)
        held = ""  # white space that may stand before the end
        while character := (yield from source.peek()):
            if character == self._form.closer[0] and (yield from source.literal((self._form.closer,))):
                yield from source.all(_SPACE)
                break
            if space := source.run(_SPACE):
                held += space
                continue
            body = source.run(self._other)
            if not body:  # only looks like the closing tag
                body, source.at = character, source.at + 1
            self._thoughts.append(held + body)
            held = ""
            source.forget()
        self._over = True

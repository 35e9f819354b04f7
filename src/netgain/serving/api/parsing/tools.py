"""Tool calls in generated text, in the forms of the supported families: behind a marker, or as a JSON object that is the
whole answer. What turns out not to be a call is content from its first character on, and is looked through again for calls."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from netgain.serving.api.parsing import json_text
from netgain.serving.api.parsing.call import ARGUMENT_KEYS, Call, call_of
from netgain.serving.api.parsing.output import Output
from netgain.serving.api.parsing.parts import NewId, Part
from netgain.serving.api.parsing.source import Reading, Source

_NAME = re.compile(r"[\w.-]*")
_UNMARKED_KEYS = frozenset({"name", "type", "id", *ARGUMENT_KEYS})


@dataclass(frozen=True)
class ToolForm:
    """How a family writes calls.

    Behind `opener` stand JSON objects, alone, in a list or with `separator` between them, up to `closer` where there is
    one. `bare`: an answer that starts with such an object is a call, too. `named`: `name[ARGS]{...}` may stand there
    instead. `markers` are all spellings that must be seen in the text.
    """

    opener: str
    closer: str = ""
    separator: str = ""
    bare: bool = False
    named: bool = False

    @property
    def markers(self) -> frozenset[str]:
        more = (_CALL_ID, _ARGS) if self.named else ()
        return frozenset({self.opener, *more, *filter(None, [self.closer])})


_CALL_ID, _ARGS = "[CALL_ID]", "[ARGS]"

# <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen; SmolLM2 puts a list inside.
HERMES = ToolForm("<tool_call>", closer="</tool_call>")
# {"name": ..., "parameters": {...}} as the whole answer, or behind <|python_tag|>: Llama 3.1 and later.
LLAMA3_JSON = ToolForm("<|python_tag|>", separator=";", bare=True)
# [TOOL_CALLS][{"name": ..., "arguments": {...}}], and [TOOL_CALLS]name[ARGS]{...} since version 11 of its tokenizer.
MISTRAL = ToolForm("[TOOL_CALLS]", named=True)


class ToolParser:
    """Content and the calls of one form to functions of these names; models make names up, too."""

    def __init__(self, form: ToolForm, new_id: NewId, names: Collection[str]) -> None:
        self._form = form
        self._source = Source()
        self._output = Output(new_id)
        self._names = frozenset(names)
        self._content = re.compile(f"[^{re.escape(form.opener[0])}]*")
        self._reading = self._answer()
        next(self._reading, None)

    def feed(self, text: str) -> list[Part]:
        self._source.add(text)
        next(self._reading, None)
        return self._output.take()

    def finish(self) -> list[Part]:
        self._source.end()
        next(self._reading, None)
        self._output.finish()
        return self._output.take()

    def _answer(self) -> Reading[None]:
        source, output = self._source, self._output
        if self._form.bare:
            yield from self._calls_or_nothing(self._bare)
        while (yield from source.peek()):
            source.forget()
            output.content(source.run(self._content))
            if (yield from source.peek()) != self._form.opener[0]:
                continue
            if not (yield from self._calls_or_nothing(self._marked)):
                output.content((yield from source.peek()))  # only looks like a marker, or like a call
                source.at += 1

    def _calls_or_nothing(self, read: Callable[[], Reading[bool]]) -> Reading[bool]:
        """Read calls; when there is not one, stand where it began."""
        start = self._source.at
        found = yield from read()
        if not found:
            self._source.at = start
        return found

    def _bare(self) -> Reading[bool]:
        yield from json_text.space(self._source)
        return (yield from self._objects(bare=True))

    def _marked(self) -> Reading[bool]:
        source, form = self._source, self._form
        if not (yield from source.literal((form.opener,))):
            return False
        yield from json_text.space(source)
        match (yield from source.peek()):
            case "{":
                found = yield from self._objects()
            case "[":
                found = yield from self._list()
            case _:
                return form.named and (yield from self._named())
        if found and form.closer:
            yield from self._optional(form.closer)
        return found

    def _objects(self, bare: bool = False) -> Reading[bool]:
        """Calls one after the other; True when there was one at least."""
        found = False
        while (yield from self._object(bare)):
            found = True
            end = self._source.at
            yield from json_text.space(self._source)
            if self._form.separator and (yield from self._source.skip(self._form.separator)):
                end = self._source.at
                yield from json_text.space(self._source)
            if (yield from self._source.peek()) != "{":
                self._source.at = end
                break
        return found

    def _list(self) -> Reading[bool]:
        source, found = self._source, False
        source.at += 1
        yield from json_text.space(source)
        while (yield from self._object()):
            found = True
            end = source.at
            yield from json_text.space(source)
            if (yield from source.skip("]")):
                break
            if not (yield from source.skip(",")):
                source.at = end
                break
            yield from json_text.space(source)
        return found

    def _object(self, bare: bool = False) -> Reading[bool]:
        """One call in JSON; when there is none, stand where it began."""
        start = self._source.at
        fields = yield from json_text.object_fields(self._source, _UNMARKED_KEYS if bare else None)
        call = None if fields is None else call_of(fields, needs_arguments=bare)
        if call is None or call.name not in self._names:
            self._source.at = start
            return False
        self._output.call(call)
        return True

    def _named(self) -> Reading[bool]:
        source = self._source
        name = yield from source.all(_NAME)
        if name not in self._names:
            return False
        if (yield from source.literal((_CALL_ID, _ARGS))) == _CALL_ID:
            yield from source.all(_NAME)
            yield from source.literal((_ARGS,))
        yield from json_text.space(source)
        start = source.at
        if (yield from json_text.object_fields(source)) is None:
            return False
        self._output.call(Call(name, source.since(start)))
        return True

    def _optional(self, closer: str) -> Reading[None]:
        """The closing marker with white space before it; models leave it out at the end of an answer, and an answer that
        is cut ends within it."""
        end = self._source.at
        yield from json_text.space(self._source)
        if (yield from self._source.literal((closer,))):
            return
        if self._source.ends_within(closer):
            self._source.rest()
        else:
            self._source.at = end

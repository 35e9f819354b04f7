"""Chat messages to prompt ids through the model's own Jinja template, in a sandbox, so that whatever a message says, only
the template opens and closes turns."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from netgain.errors import RequestRejected, UsageError
from netgain.serving.model.tokenizer import Tokenizer, guard_for


class ChatTemplate:
    """A chat template as Hugging Face writes them. Raises UsageError when the source is no valid template."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self.source = source
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"the model's chat template is not valid Jinja: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `options` are the template's own variables. RequestRejected says why a template refuses."""
        variables = {
            **self._special,
            **(options or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except TemplateError as error:
            raise RequestRejected(f"the model's chat template refuses these messages: {error}", "messages") from error
        except Exception as error:  # a template computes with whatever the messages hold
            detail = f"{type(error).__name__}: {error}"
            raise RequestRejected(
                f"the model's chat template cannot use these messages ({detail})", "messages"
            ) from error

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
        continue_last: bool = False,
    ) -> list[int]:
        """Prompt ids in which control ids come from the template alone: text that spells a marker stays text.

        With `continue_last` the prompt ends with the last message's content, for the model to go on from there.
        """
        guard = guard_for(_strings([messages, tools, options, self.source]))
        if guard is None:
            raise RequestRejected("the messages use every private-use character; leave one out", "messages")
        shielded = [_shield(message, tokenizer, guard) for message in messages]
        text = self.render(
            shielded,
            None if tools is None else [_shield(tool, tokenizer, guard) for tool in tools],
            add_generation_prompt,
            None if options is None else _shield(options, tokenizer, guard),
        )
        return tokenizer.encode_marked(_cut_behind(text, shielded[-1]["content"]) if continue_last else text, guard)


def _cut_behind(text: str, content: str) -> str:
    """Rendered text up to the end of a message's content, whose outer white space a template may have dropped."""
    body = content.strip()
    at = text.rfind(body)
    if at < 0:
        raise RequestRejected(
            "the model's chat template changes the last message, so it cannot be continued", "messages"
        )
    end = at + len(body)
    space = content[len(content.rstrip()) :]
    return text[: end + len(space)] if text.startswith(space, end) else text[:end]


def _shield(value: Any, tokenizer: Tokenizer, guard: str) -> Any:
    """A copy whose free text cannot spell a marker."""
    if isinstance(value, str):
        return tokenizer.guarded(value, guard)
    if isinstance(value, Mapping):
        return {
            tokenizer.guarded_name(key, guard): item if _is_structure(key, item) else _shield(item, tokenizer, guard)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_shield(item, tokenizer, guard) for item in value]
    return value


def _is_structure(key: str, value: Any) -> bool:
    """Whether a value is a role or a type, which templates put inside their markers, and no free text."""
    return key in ("role", "type") and isinstance(value, str) and re.fullmatch(r"[\w-]{1,64}", value) is not None


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for item in pair for text in _strings(item)]
    if isinstance(value, Sequence):
        return [text for item in value for text in _strings(item)]
    return []


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As chat templates expect it: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)

"""Chat messages to prompt ids through the model's own Jinja template, in a sandbox, so that whatever a message says, only
the template opens and closes turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError

from netgain.errors import RequestRejected, UsageError
from netgain.serving.model.templating.files import DEFAULT
from netgain.serving.model.templating.messages import Message, for_template, with_text_arguments
from netgain.serving.model.templating.sandbox import MAX_SOURCE_CHARACTERS, Sandbox
from netgain.serving.model.templating.shield import shield, strings
from netgain.serving.model.tokenizer import Tokenizer, guard_for


class ChatTemplate:
    """A chat template as Hugging Face writes them: one text, or several by name, of which `default` must be one.

    With tools the form named `tool_use` is taken where there is one, with documents `rag`. Raises UsageError when a
    source is no valid template.
    """

    def __init__(self, sources: str | Mapping[str, str], bos_token: str = "", eos_token: str = "") -> None:
        named = {DEFAULT: sources} if isinstance(sources, str) else dict(sources)
        if DEFAULT not in named:
            raise UsageError(f"the model has chat templates {sorted(named)} but none named {DEFAULT!r}")
        self.sources: Mapping[str, str] = MappingProxyType(named)
        self.source = "\n".join(named.values())
        self._sandbox = Sandbox()
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        self._forms = {name: self._compile(name, source) for name, source in named.items()}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `variables` are the template's own, such as enable_thinking.

        With `continue_final_message` it ends with the content of the last message, and no turn is opened. Raises
        RequestRejected with the template's reason.
        """
        prepared = for_template(messages, self.source)
        end = None
        if continue_final_message:
            end = guard_for([*strings(prepared), self.source]) or "\0"
            prepared, add_generation_prompt = _ending(prepared, end), False
        given = {
            **self._special,
            **(variables or {}),
            "tools": tools or None,
            "documents": documents or None,
            "add_generation_prompt": add_generation_prompt,
        }
        form = self._form(bool(tools), bool(documents))
        try:
            text = self._sandbox.run(form, {**given, "messages": prepared})
        except SecurityError as error:
            raise RequestRejected(f"the model's chat template cannot be rendered: {error}", "messages") from error
        except TypeError as error:
            if not any(message.get("tool_calls") for message in prepared):
                raise _unusable(error) from error
            text = self._second_try(form, {**given, "messages": with_text_arguments(prepared)})
        except TemplateError as error:
            raise _refused(error) from error
        except Exception as error:  # a template computes with whatever the messages hold
            raise _unusable(error) from error
        return text if end is None else _until(end, text)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids in which control ids come from the template alone: text that spells a marker stays text.

        That holds for every string in what is given, at any depth. Parameters as of `render`.
        """
        given = [for_template(messages, self.source), tools, documents, variables]
        try:
            guard = guard_for([*strings(given), self.source])
            if guard is None:
                raise RequestRejected("the messages use every private-use character; leave one out", "messages")
            turns, tools, documents, variables = (shield(value, tokenizer, guard) for value in given)
        except RecursionError as error:
            raise RequestRejected("the messages or tools are nested too deeply", "messages") from error
        text = self.render(
            turns,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        return tokenizer.encode_marked(text, guard)

    def _compile(self, name: str, source: str) -> Template:
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise UsageError(f"the model's chat template has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS}")
        try:
            return self._sandbox.from_string(source)
        except Exception as error:  # also RecursionError, and what Python says of code that it cannot compile
            which = "" if name == DEFAULT else f" {name!r}"
            raise UsageError(f"the model's chat template{which} is not valid Jinja: {error}") from error

    def _form(self, tools: bool, documents: bool) -> Template:
        if tools and "tool_use" in self._forms:
            return self._forms["tool_use"]
        if documents and "rag" in self._forms:
            return self._forms["rag"]
        return self._forms[DEFAULT]

    def _second_try(self, form: Template, given: Mapping[str, Any]) -> str:
        """Some templates put arguments into their text as they are, which fails for objects."""
        try:
            return self._sandbox.run(form, given)
        except TemplateError as error:
            raise _refused(error) from error
        except Exception as error:
            raise _unusable(error) from error


def _refused(error: Exception) -> RequestRejected:
    return RequestRejected(f"the model's chat template refuses these messages: {error}", "messages")


def _unusable(error: Exception) -> RequestRejected:
    detail = f"{type(error).__name__}: {error}"
    return RequestRejected(f"the model's chat template cannot use these messages ({detail})", "messages")


def _ending(messages: list[dict[str, Any]], end: str) -> list[dict[str, Any]]:
    """The same with an end mark behind the last content, and a space that shows whether the template trims it."""
    last = messages[-1] if messages else {}
    if not isinstance(last.get("content"), str) or last.get("tool_calls"):
        raise RequestRejected("the last message has no text that could be continued", "messages")
    return [*messages[:-1], {**last, "content": f"{last['content']}{end} "}]


def _until(end: str, text: str) -> str:
    at = text.rfind(end)
    if at < 0:
        raise RequestRejected(
            "the model's chat template leaves out the last message, so it cannot be continued", "messages"
        )
    before = text[:at].replace(f"{end} ", "").replace(end, "")
    return before if text.startswith(f"{end} ", at) else before.rstrip()

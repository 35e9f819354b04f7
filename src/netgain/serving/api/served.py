"""The model behind the API as the API process needs it: name, limits, tokenizer, chat template and how it writes calls."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from netgain.errors import RequestRejected
from netgain.serving.api.chat_protocol import ConversationFields, Tool
from netgain.serving.api.errors import ApiError
from netgain.serving.api.forced_call import forced_call
from netgain.serving.api.parsing.registry import AUTO, OutputFormat, output_format
from netgain.serving.api.parsing.tools import HERMES
from netgain.serving.api.tool_text import knows_tools, with_tools_as_text
from netgain.serving.engine.request import Grammar
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.runtime.config import ApiSettings

_DECIDING = ("weights", "dtype", "kv_dtype", "kernels", "device")  # what the bits of an answer depend on


class ServedModel:
    """The checkpoint's text side, and what the engine said of itself when it was built. `max_length` is in tokens, prompt
    and answer together; `fingerprint` changes when the same request may get another answer."""

    def __init__(self, checkpoint: Checkpoint, info: Mapping[str, Any], settings: ApiSettings | None = None) -> None:
        settings = settings or ApiSettings()
        self.info = info
        self.name: str = info["model"]
        self.max_length: int = min(info["max_length"], info["kv_tokens"])
        self.vocab_size: int = info["vocab_size"]
        self.tokenizer = checkpoint.tokenizer
        self.all_markers = frozenset(checkpoint.tokenizer.markers)
        deciding = "\n".join(f"{name}={info.get(name)}" for name in _DECIDING)
        self.fingerprint = f"fp_{hashlib.sha256(deciding.encode()).hexdigest()[:12]}"
        self._template = checkpoint.template
        self._knows_tools = self._template is not None and knows_tools(self._template.source)
        form = output_format(settings.tool_parser, settings.reasoning_parser, checkpoint.tokenizer, checkpoint.template)
        if form.tools is None and settings.tool_parser == AUTO:
            form = replace(form, tools=HERMES)  # offered as text, so the form is ours to choose
        self._format = form

    def check_name(self, model: str | None) -> None:
        """Raises ApiError 404 for a model that is not this one; None asks for whatever is served."""
        if model is not None and model != self.name:
            raise ApiError(
                404,
                f"the model {model!r} is not served here; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def output_format(self, tools: bool) -> OutputFormat:
        """How to read an answer. Raises RequestRejected when tools are offered to a model that cannot call any."""
        if tools and self._format.tools is None:
            raise RequestRejected(
                "this server reads no tool calls (api.tool_parser is none): leave tools out",
                "tools",
            )
        return self._format

    def forced_call(self, tools: Sequence[Tool], several: bool) -> Grammar:
        """A call of one of the tools, or several, and nothing else."""
        form = self.output_format(tools=True).tools
        assert form is not None
        return forced_call(form, [tool.function for tool in tools], self.tokenizer, several)

    def chat_prompt(
        self, conversation: ConversationFields, tools: Sequence[Tool] = (), reasoning_effort: str | None = None
    ) -> tuple[int, ...]:
        """Prompt ids of a conversation. Raises RequestRejected with the template's own reason."""
        if self._template is None:
            raise RequestRejected(f"{self.name} has no chat template; use /v1/completions", "messages")
        options = dict(conversation.chat_template_kwargs or {})
        if reasoning_effort is not None:
            options.setdefault("reasoning_effort", reasoning_effort)
        turns = [message.for_template() for message in conversation.messages]
        offered = [tool.for_template() for tool in tools]
        if not self._knows_tools and self._format.tools is not None:
            turns, offered = with_tools_as_text(turns, offered, self._format.tools), []
        ids = self._template.encode(
            self.tokenizer,
            turns,
            tools=offered,
            documents=conversation.documents,
            add_generation_prompt=conversation.opens_turn,
            continue_final_message=bool(conversation.continue_final_message),
            variables=options,
        )
        if not ids:
            raise RequestRejected("the chat template renders these messages to nothing", "messages")
        return tuple(ids)

    def plain_prompt(self, prompt: str | list[int], start: bool = True) -> tuple[int, ...]:
        """Prompt ids of text (with `start`, the model's own start tokens before) or of ids. Raises RequestRejected."""
        ids = self.tokenizer.encode(prompt, start=start) if isinstance(prompt, str) else prompt
        if not ids:
            raise RequestRejected("the prompt is empty; send at least one token", "prompt")
        if isinstance(prompt, list):
            self.check_ids(prompt, "prompt")
        return tuple(ids)

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raises RequestRejected for ids that the model does not have."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise RequestRejected(f"the {field} holds token ids outside 0..{self.vocab_size - 1}", field)

    def text_of(self, prompt: Sequence[int]) -> str:
        """A prompt as its answer echoes it: without control tokens."""
        return self.tokenizer.decode(prompt)

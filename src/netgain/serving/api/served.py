"""The model behind the API as the API process needs it: name, limits, tokenizer and chat template."""

from collections.abc import Mapping
from typing import Any

from netgain.errors import RequestRejected
from netgain.serving.api.protocol import Message
from netgain.serving.model.checkpoint import Checkpoint


class ServedModel:
    """The checkpoint's text side, and what the engine said of itself when it was built. `max_length` is in tokens, prompt
    and answer together."""

    def __init__(self, checkpoint: Checkpoint, info: Mapping[str, Any]) -> None:
        self.info = info
        self.name: str = info["model"]
        self.max_length: int = min(info["max_length"], info["kv_tokens"])
        self.vocab_size: int = info["vocab_size"]
        self.tokenizer = checkpoint.tokenizer
        self._template = checkpoint.template

    def chat_prompt(self, messages: list[Message]) -> tuple[int, ...]:
        """Prompt ids of a conversation. Raises RequestRejected with the template's own reason."""
        if self._template is None:
            raise RequestRejected(f"{self.name} has no chat template; use /v1/completions", "messages")
        ids = self._template.encode(self.tokenizer, [message.for_template() for message in messages])
        if not ids:
            raise RequestRejected("the chat template renders these messages to nothing", "messages")
        return tuple(ids)

    def plain_prompt(self, prompt: str | list[int]) -> tuple[int, ...]:
        """Prompt ids of text (with the model's own start tokens) or of ids. Raises RequestRejected."""
        ids = self.tokenizer.encode(prompt, start=True) if isinstance(prompt, str) else prompt
        if not ids:
            raise RequestRejected("the prompt is empty; send at least one token", "prompt")
        if isinstance(prompt, list) and not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise RequestRejected(f"the prompt holds token ids outside 0..{self.vocab_size - 1}", "prompt")
        return tuple(ids)

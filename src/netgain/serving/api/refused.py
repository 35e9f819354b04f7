"""Fields that other servers know, that would change the answer, and that this one does not offer: refused by name, so that
nobody takes an answer for what it is not. Unknown fields beside them are let through, since clients send many that change
nothing."""

from collections.abc import Mapping
from typing import Any

from netgain.serving.api.fields import WrongField

# Each with the values that ask for nothing.
_EVERYWHERE: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": (None, False),
    "length_penalty": (None, 1),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "truncate_prompt_tokens": (None,),
    "return_token_ids": (None, False),
    "kv_transfer_params": (None,),
    "prompt_embeds": (None,),
    "structural_tag": (None,),
}
_CHAT: Mapping[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "verbosity": (None, "medium"),
    "chat_template": (None,),
    "echo": (None, False),
    "add_special_tokens": (None, False),
}
_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {"suffix": (None, "")}
_INSTEAD = {
    "functions": "send tools instead",
    "function_call": "send tool_choice instead",
    "chat_template": "the served model's own template is used",
    "suffix": "text is only continued, not filled in",
}

CHAT_REFUSES: Mapping[str, tuple[Any, ...]] = {**_EVERYWHERE, **_CHAT}
COMPLETIONS_REFUSE: Mapping[str, tuple[Any, ...]] = {**_EVERYWHERE, **_COMPLETIONS}


class NotOffered(WrongField):
    """A field asks for something that this server does not do."""

    def __init__(self, name: str, detail: str | None = None) -> None:
        hint = detail or _INSTEAD.get(name, "leave it out")
        super().__init__(name, f"{name!r} is not supported by this server; {hint}")


def refuse(data: Any, names: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise NotOffered for the first of `names` that `data`, a JSON value, sets to something that asks for anything."""
    if isinstance(data, dict):
        for name, neutral in names.items():
            if name in data and not any(_same(data[name], value) for value in neutral):
                raise NotOffered(name)


def _same(value: Any, neutral: Any) -> bool:
    """Whole numbers also as floats: 1.0 asks for as little as 1; but true is no 1."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return bool(value == neutral)

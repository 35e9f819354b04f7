"""What clients may ask of /v1/chat/completions: turns, tools, and which of them the model has to call."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from netgain.serving.api.fields import MAX_LOGPROBS, MAX_NAME_CHARACTERS, MAX_TOOLS, Fields, Whole, WrongField
from netgain.serving.api.protocol import GenerationRequest
from netgain.serving.api.refused import CHAT_REFUSES, NotOffered, refuse

FunctionName = Annotated[str, Field(pattern=f"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}$")]
_PART_TEXTS = {"text": "text", "refusal": "refusal"}  # type of a part -> where its text is
_TEMPLATE_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


def _text_content(value: Any) -> Any:
    """A message's content: a string, nothing, or a list of text parts -> a string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("give a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        key = _PART_TEXTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise ValueError(f"only text parts are taken, not {kind!r}")
        if not isinstance(part.get(key), str):
            raise ValueError(f"a {kind} part needs a string in its {key!r}")
        texts.append(part[key])
    return "".join(texts)


_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_SAID = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
Text = Annotated[
    str,
    BeforeValidator(_text_content),
    WithJsonSchema({"anyOf": [*_SAID["anyOf"], {"type": "null"}]}),
]


class FunctionCall(Fields):
    """`arguments` is JSON text, as it came with the call; the template's side makes an object of it where it is one."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str = "{}"


class ToolCall(Fields):
    """A call that the model made in an earlier turn."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: FunctionCall

    def for_template(self) -> dict[str, Any]:
        """For the template."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


_BY_ROLE: dict[str, Any] = {
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"role": {"enum": ["system", "developer", "user"]}, "content": _SAID}, "required": ["content"]},
        {"properties": {"role": {"const": "tool"}, "content": _SAID}, "required": ["content", "tool_call_id"]},
    ]
}


class Message(Fields):
    """One turn. `content` becomes a plain string."""

    model_config = ConfigDict(json_schema_extra=_BY_ROLE)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: Annotated[str | None, Field(description="what an assistant turn thought before it answered")] = (
        None
    )
    reasoning: Annotated[str | None, Field(description="another spelling of reasoning_content")] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_legacy_calls(cls, data: Any) -> Any:
        refuse(data, {"function_call": (None,), "audio": (None,)})
        role = data.get("role") if isinstance(data, dict) else None
        if role in ("system", "developer", "user", "tool") and data.get("content") is None:
            raise ValueError(f"a {role} message needs content")
        return data

    @model_validator(mode="after")
    def _fields_belong_to_the_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a {self.role} message makes no tool_calls, only an assistant message does")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("a tool message needs the tool_call_id of the call that it answers")
        return self

    @property
    def thought(self) -> str | None:
        return self.reasoning_content if self.reasoning_content is not None else self.reasoning

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        if self.name is not None:
            turn["name"] = self.name
        if self.tool_calls:
            turn["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        if self.thought is not None and self.role == "assistant":
            turn["reasoning_content"] = self.thought
        return turn


class Function(Fields):
    """`parameters` is a JSON schema of the arguments, by default an object without any. `strict` changes nothing: a call
    that is forced always follows the schema, one that the model makes by itself follows it as far as the model can."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class NamedFunction(Fields):
    name: FunctionName


class NamedTool(Fields):
    """Which function has to be called."""

    type: Literal["function"]
    function: NamedFunction


class ConversationFields(Fields):
    """What the chat template reads."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None

    @model_validator(mode="after")
    def _the_conversation_holds_together(self) -> Self:
        _check_tool_turns(self.messages)
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise WrongField("tools", f"two functions have the name {twice!r}")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise WrongField(
                    "continue_final_message", "continue_final_message and add_generation_prompt exclude each other"
                )
            if not self.messages[-1].content:
                raise WrongField("continue_final_message", "continue_final_message needs a last message with content")
        taken = _TEMPLATE_VARIABLES.intersection(self.chat_template_kwargs or ())
        if taken:
            raise WrongField("chat_template_kwargs", f"chat_template_kwargs must not set {sorted(taken)[0]!r}")
        return self

    @property
    def opens_turn(self) -> bool:
        """Whether the prompt ends with the start of an assistant turn."""
        return not self.continue_final_message and self.add_generation_prompt is not False


class ChatRequest(ConversationFields, GenerationRequest):
    """POST /v1/chat/completions."""

    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str | None, Field(description="handed to the chat template as it is")] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_offered(cls, data: Any) -> Any:
        refuse(data, CHAT_REFUSES)
        choice = data.get("tool_choice") if isinstance(data, dict) else None
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            raise NotOffered("tool_choice", "allowed_tools: send only the tools that may be called")
        return data

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise WrongField("top_logprobs", "top_logprobs needs logprobs: true")
        if self.tool_choice not in (None, "none", "auto"):
            if not self.tools:
                raise WrongField("tool_choice", "tool_choice asks for a call, but there are no tools")
            if self.structure is not None:
                raise WrongField(
                    "tool_choice", f"{self.structure[0]} and a tool_choice that forces a call exclude each other"
                )
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            if all(tool.function.name != wanted for tool in self.tools or ()):
                raise WrongField("tool_choice", f"tool_choice names {wanted!r}, which is none of the tools")
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call in this turn."""
        if self.tool_choice == "none":
            return ()
        return tuple(self.tools or ())

    @property
    def forced_tools(self) -> tuple[Tool, ...]:
        """The tools one of which has to be called; empty: none has to."""
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            return tuple(tool for tool in self.tools or () if tool.function.name == wanted)
        return self.callable_tools if self.tool_choice == "required" else ()

    @property
    def may_call_several(self) -> bool:
        """Whether a forced answer may hold several calls."""
        return self.tool_choice == "required" and self.parallel_tool_calls is not False


def _check_tool_turns(messages: list[Message]) -> None:
    """Every tool message answers, once, a call of the assistant message before it."""
    open_calls: set[str] = set()
    for at, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise WrongField(
                    f"messages.{at}.tool_call_id",
                    f"messages.{at}: tool_call_id {message.tool_call_id!r} is no unanswered call of the assistant message before",
                )
            open_calls.discard(message.tool_call_id or "")
        elif message.role == "assistant":
            ids = [call.id for call in message.tool_calls or ()]
            open_calls = set(ids)
            if len(open_calls) < len(ids):
                raise WrongField(f"messages.{at}.tool_calls", f"messages.{at}: two of its tool_calls have the same id")
        else:
            open_calls = set()

"""What an answer must look like, in all the ways clients say it: OpenAI's response_format, vLLM's structured_outputs and its
older guided_* fields. At most one of them may ask."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from netgain.serving.api.fields import MAX_CHOICE_ALTERNATIVES, MAX_GRAMMAR_CHARACTERS, Fields, WrongField
from netgain.serving.api.refused import NotOffered
from netgain.serving.engine.request import Grammar

_REGEX_SPECIAL = frozenset("\\.+*?()|[]{}^$")
_ANY_OBJECT = Grammar(kind="json_schema", text='{"type": "object"}')


def _schema_text(value: Any) -> Any:
    """A JSON schema, or the JSON text of one -> its text."""
    if isinstance(value, str):
        if len(value) > MAX_GRAMMAR_CHARACTERS:
            return value  # refused for its length
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the schema is no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise ValueError("give a JSON schema: an object")
    return json.dumps(value, ensure_ascii=False)


def _bounded_together(alternatives: list[str]) -> list[str]:
    total = sum(map(len, alternatives))
    if total > MAX_GRAMMAR_CHARACTERS:
        raise ValueError(f"the alternatives have {total} characters together, the limit is {MAX_GRAMMAR_CHARACTERS}")
    return alternatives


Text = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARACTERS)]
Schema = Annotated[
    Text, BeforeValidator(_schema_text), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}]})
]
Alternatives = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=MAX_CHOICE_ALTERNATIVES),
    AfterValidator(_bounded_together),
]


class NamedSchema(Fields):
    """A JSON schema as OpenAI wraps it; it is always enforced, `strict` or not."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's field: `text`, `json_object` or `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _a_schema_where_one_is_meant(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs a json_schema with name and schema")
        return self

    @property
    def grammar(self) -> Grammar | None:
        if self.type == "json_schema" and self.json_schema is not None:
            return Grammar(kind="json_schema", text=self.json_schema.schema_)
        return _ANY_OBJECT if self.type == "json_object" else None


class StructuredOutputs(Fields):
    """vLLM's field; exactly one of these. `grammar` is in Lark's notation, as llguidance reads it."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Alternatives | None = None
    grammar: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_kinds_only(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("structural_tag") is not None:
            raise NotOffered("structural_tag")
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(list(self.grammars())) != 1:
            raise ValueError("give exactly one of json, json_object, regex, choice and grammar")
        return self

    def grammars(self) -> Iterator[Grammar]:
        if self.json_object:
            yield _ANY_OBJECT
        yield from _grammars(self.json_, self.regex, self.choice, self.grammar)


class Structured(Fields):
    """The fields themselves, for the requests of both endpoints."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Alternatives | None = None
    guided_grammar: Text | None = None

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        asked = [name for name, _ in self._asked()]
        if len(asked) > 1:
            raise WrongField(
                asked[1], f"{' and '.join(asked)} each ask for a structure of the answer; send one of them"
            )
        return self

    @property
    def structure(self) -> tuple[str, Grammar] | None:
        """The field that asks for a structure, and the structure."""
        return next(self._asked(), None)

    def _asked(self) -> Iterator[tuple[str, Grammar]]:
        if self.response_format is not None and self.response_format.grammar is not None:
            yield "response_format", self.response_format.grammar
        if self.structured_outputs is not None:
            yield from (("structured_outputs", grammar) for grammar in self.structured_outputs.grammars())
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar"):
            if (value := getattr(self, name)) is not None:
                kind = name.removeprefix("guided_")
                yield name, next(_grammars(**{kind: value}))


def _grammars(
    json: str | None = None, regex: str | None = None, choice: Sequence[str] | None = None, grammar: str | None = None
) -> Iterator[Grammar]:
    if json is not None:
        yield Grammar(kind="json_schema", text=json)
    if regex is not None:
        yield Grammar(kind="regex", text=regex)
    if choice is not None:
        yield Grammar(kind="regex", text="|".join(f"({_literal(text)})" for text in choice))
    if grammar is not None:
        yield Grammar(kind="lark", text=grammar)


def _literal(text: str) -> str:
    return "".join("\\" + letter if letter in _REGEX_SPECIAL else letter for letter in text)

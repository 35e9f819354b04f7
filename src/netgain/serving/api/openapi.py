"""The OpenAPI document: what every path takes and answers, errors included, with the bounds of this server."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.errors import ErrorBody
from netgain.serving.api.fields import MAX_DEADLINE_S, MIN_DEADLINE_S
from netgain.serving.api.protocol import CompletionRequest
from netgain.serving.api.served import ServedModel
from netgain.serving.api.shapes import ChatAnswer, ChatChunk, TextAnswer
from netgain.serving.api.tokenize import Detokenized, DetokenizeRequest, TokenizeChat, Tokenized, TokenizeText
from netgain.serving.runtime.config import ServerConfig

_REFS = "#/components/schemas/"
_TAKES: Mapping[str, tuple[type[Any], ...]] = {
    "/v1/chat/completions": (ChatRequest,),
    "/v1/completions": (CompletionRequest,),
    "/tokenize": (TokenizeText, TokenizeChat),
    "/detokenize": (DetokenizeRequest,),
}
_ANSWERS: Mapping[str, type[Any]] = {
    "/v1/chat/completions": ChatAnswer,
    "/v1/completions": TextAnswer,
    "/tokenize": Tokenized,
    "/detokenize": Detokenized,
}
_EVENTS: Mapping[str, type[Any]] = {"/v1/chat/completions": ChatChunk, "/v1/completions": TextAnswer}
_ERRORS: Mapping[int, str] = {
    400: "The request cannot be served as it is; `param` names what to change.",
    401: "A valid API key is needed.",
    403: "This key may not do that.",
    404: "There is no such model or path.",
    408: "The body did not come in time, or the request was not finished within its own time limit.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "Too much at once; try again after `Retry-After` seconds.",
    500: "This request could not be computed.",
    503: "No engine is ready; try again after `Retry-After` seconds.",
}
_GENERATED = tuple(_ERRORS)
_READ = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)
_TIMEOUT_HEADER = {
    "name": "x-request-timeout-s",
    "in": "header",
    "required": False,
    "description": "like the field timeout_s; the shorter counts",
    "schema": {"type": "number", "minimum": MIN_DEADLINE_S, "maximum": MAX_DEADLINE_S},
}


def document(app: FastAPI, served: ServedModel, config: ServerConfig) -> dict[str, Any]:
    """The document of `app`, with what the handlers read and write by hand."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    kinds = [kind for kinds in _TAKES.values() for kind in kinds]
    _, taken = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REFS + "{model}")
    _, given = msgspec.json.schema_components(
        [*_ANSWERS.values(), *_EVENTS.values(), ErrorBody], ref_template=_REFS + "{name}"
    )
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own errors are answered in OpenAI's shape
        schemas.pop(unused, None)
    schemas.update(taken["$defs"])
    schemas.update(given)
    _bound(schemas, served, config)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            _describe(path, operation)
    return document


def _describe(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if path in _TAKES:
        refs = [_ref(kind) for kind in _TAKES[path]]
        schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        responses["200"]["content"] = {"application/json": {"schema": _ref(_ANSWERS[path])}}
    if path in _EVENTS:
        operation.setdefault("parameters", []).append(_TIMEOUT_HEADER)
        responses["200"]["content"]["text/event-stream"] = {
            "schema": {"type": "string", "description": f"events of {_EVENTS[path].__name__}, then [DONE]"}
        }
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    for status in _GENERATED if path in _EVENTS else _READ if path in _TAKES else (400, 401, 403, 404, 429, 503):
        content = {"application/json": {"schema": _ref(ErrorBody)}}
        responses.setdefault(str(status), {"description": _ERRORS[status], "content": content})


def _bound(schemas: dict[str, Any], served: ServedModel, config: ServerConfig) -> None:
    """The limits of this server and model, which the types do not know."""
    longest = min(served.max_length, config.limits.max_tokens or served.max_length)
    token = {"type": "integer", "minimum": 0, "maximum": served.vocab_size - 1}
    for kind in (kind for kinds in _TAKES.values() for kind in kinds):
        fields = schemas[kind.__name__]["properties"]
        fields["model"] = {"anyOf": [{"const": served.name}, {"type": "null"}]}
        for name, most in (
            ("n", config.limits.max_choices),
            ("max_tokens", longest),
            ("max_completion_tokens", longest),
        ):
            if name in fields:
                fields[name]["anyOf"][0]["maximum"] = most
        if "stop_token_ids" in fields:
            fields["stop_token_ids"]["anyOf"][0]["items"] = token
    schemas[DetokenizeRequest.__name__]["properties"]["tokens"]["items"] = token
    prompts = schemas[CompletionRequest.__name__]["properties"]["prompt"]["anyOf"]
    prompts[1]["items"] = token
    prompts[2]["items"]["anyOf"][1]["items"] = token
    prompts[2]["maxItems"] = config.limits.max_prompts


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": _REFS + kind.__name__}

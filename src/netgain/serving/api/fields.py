"""What the fields of requests are made of: JSON values as they are, with the bounds that are checked before anything is
allocated. A bound that a client can meet is named in the message that refuses it."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MAX_PROMPTS = 1024  # however high limits.max_prompts is set
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_SALT_CHARACTERS = 256
MAX_CHUNKS = 256
MAX_LOGPROBS = 20  # most likely tokens per position, as OpenAI's chat offers
MAX_LOGIT_BIASES = 1024
MAX_TOOLS = 128
MAX_NAME_CHARACTERS = 64
MAX_GRAMMAR_CHARACTERS = 64 << 10
MAX_CHOICE_ALTERNATIVES = 1024
MIN_DEADLINE_S, MAX_DEADLINE_S = 0.001, 86_400.0


class Fields(BaseModel):
    """No strings for numbers, no booleans for counts; unknown fields are let through."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class WrongField(ValueError):
    """Fields that are right each by itself do not go together; `name` is the one to change."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("give a finite number")
    return value


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(value: Any) -> Any:
    """`stop`: nothing, a string or a list of strings -> a list."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("give a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings are taken, not {len(stops)}")
    if any(not stop or len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise ValueError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def _biases(value: Any) -> Any:
    """`logit_bias`: an object from token ids, as strings, to numbers -> pairs in ascending order of ids."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ValueError("give an object from token ids to numbers from -100 to 100")
    if len(value) > MAX_LOGIT_BIASES:
        raise ValueError(f"at most {MAX_LOGIT_BIASES} tokens are taken, not {len(value)}")
    pairs: dict[int, float] = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"{key[:20]!r} is no token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {key} is no number from -100 to 100")
        pairs[int(key)] = float(bias)
    return tuple(sorted(pairs.items()))


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}

Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_finite)]
Stops = Annotated[
    list[str],
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}, {"type": "null"}]}),
]
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(_biases),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
                    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                    "maxProperties": MAX_LOGIT_BIASES,
                },
                {"type": "null"},
            ]
        }
    ),
]
StopTokenIds = Annotated[list[Annotated[Whole, Field(ge=0)]], Field(max_length=MAX_STOP_TOKEN_IDS)]

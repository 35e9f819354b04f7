"""Every failure in OpenAI's shape: status, type and code for each kind, and one body for all."""

import math
import reprlib
from collections.abc import Mapping

import msgspec
from pydantic import ValidationError

from netgain.errors import NetgainError, Overloaded, RequestRejected, Unavailable, UsageError
from netgain.serving.api.fields import WrongField
from netgain.serving.api.refused import NotOffered

RETRY_AFTER_S = 1
_MESSAGE_CHARACTERS = 1000

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
}
_CODES: Mapping[int, str] = {
    408: "request_timeout",
    413: "request_too_large",
    429: "queue_full",
    500: "internal_error",
    503: "engine_unavailable",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """What OpenAI clients read."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class ApiError(NetgainError):
    """A failure with the HTTP status it is answered with; `code` by default follows from the status. `retry_after_s`: when
    the same request may succeed, where that is known."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = _bounded(message)
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers["retry-after"] = str(max(RETRY_AFTER_S, math.ceil(retry_after_s or 0)))
        self.detail = ErrorDetail(
            message, _TYPES.get(status, "invalid_request_error"), param, code or _CODES.get(status)
        )

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.detail))


def one_line(text: str) -> str:
    """For the log: what could begin a line, or steer a terminal, is escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def to_api_error(error: Exception) -> ApiError:
    """The answer to any exception; what is no netgain error is a fault of ours and its text stays in the log."""
    match error:
        case ApiError():
            return error
        case ValidationError():
            return _from_validation(error)
        case RequestRejected():
            return ApiError(400, str(error), param=error.parameter)
        case Overloaded():
            return ApiError(429, str(error), retry_after_s=error.retry_after_s)
        case Unavailable():
            return ApiError(503, str(error))
        case UsageError():
            return ApiError(400, str(error))
        case NetgainError():
            return ApiError(500, str(error))
    return ApiError(500, f"the server failed on this request ({type(error).__name__}); its log has the details")


def _from_validation(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return ApiError(
            400, f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, NotOffered):
        return ApiError(400, str(cause), param=cause.name, code="unsupported_parameter")
    if isinstance(cause, WrongField):
        return ApiError(400, str(cause), param=cause.name)
    if not where and cause is not None:
        return ApiError(400, str(cause))
    if not where:
        return ApiError(400, "the body must be a JSON object with the fields of this endpoint")
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "missing" else f"; got {_short(first['input'])}"
    return ApiError(400, f"{where}: {message}{got}", param=where)


def _bounded(message: str) -> str:
    """A message that quotes what came is cut in the middle, so that no answer or log line grows with the request."""
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    half = _MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... {message[-half:]}"


class _Quoting(reprlib.Repr):
    """Looks at no more of a large value than is shown of it."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxdict = 20
        self.maxstring = self.maxlong = self.maxother = 200


def _short(value: object) -> str:
    shown = _Quoting().repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."

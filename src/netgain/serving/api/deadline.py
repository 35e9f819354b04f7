"""How long a client gives its request: the field `timeout_s`, or this header for clients that cannot add a field."""

from starlette.datastructures import Headers

from netgain.serving.api.errors import ApiError
from netgain.serving.api.fields import MAX_DEADLINE_S, MIN_DEADLINE_S

HEADER = "x-request-timeout-s"


def timeout_of(field_s: float | None, headers: Headers) -> float | None:
    """Seconds from the request's arrival: the shorter of field and header. None: no limit. Raises ApiError 400."""
    text = headers.get(HEADER)
    if text is None:
        return field_s
    try:
        header_s = float(text)
    except ValueError:
        header_s = -1.0
    if not MIN_DEADLINE_S <= header_s <= MAX_DEADLINE_S:
        raise ApiError(
            400, f"the header {HEADER} is {text[:40]!r}; give seconds, more than 0, at most {MAX_DEADLINE_S:g}"
        )
    return header_s if field_s is None else min(header_s, field_s)

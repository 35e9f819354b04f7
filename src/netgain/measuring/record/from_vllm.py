"""vLLM's request log: `Received request ...` lines, with `--enable-log-outputs` also `Generated response ...`.

Prompt and token ids stand in these lines (until 2025), or in DEBUG lines of their own: `Request ID details: prompt: ...` and
`Generated response ID details: output_token_ids: ...` (later). Plain, coloured and JSON logs, and Docker's JSON around them.
"""

import ast
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from netgain.measuring.record.entry import Asked, Entry
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.source import Skipped, SourceFile

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR)\s+(\d{2})-(\d{2})\s+(\d{2}):(\d{2}):(\d{2})\b")
# ids are whatever the client's X-Request-Id says, so only what follows ends them
_MESSAGE = re.compile(
    r"(Received request|Request|Generated response) (\S.*?)(?: \((streaming delta|streaming complete)\))?"
    r"(?:: (?=prompt: |params: |sampling_params: |output: )| details: (?=prompt: |output_token_ids: )|( JSON body: ))(.*)$"
)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_QUOTED_TEXT = re.compile(_QUOTED)
_PROMPT = re.compile(rf"prompt: ({_QUOTED}|None)")
_OUTPUT = re.compile(rf"output: ({_QUOTED}|None)")
_IDS = re.compile(r"(?<!output_)(?:prompt_)?token_ids: (\[[\d, ]*\]|None)")
_OUTPUT_IDS = re.compile(r"output_token_ids: (\[[\d, ]*\]|None)")
_REASON = re.compile(r"finish_reason: (\w+)")
_PARAMS = re.compile(r"(?:params|sampling_params): (?:(SamplingParams|BeamSearchParams|PoolingParams)\((.*)\)|None)")
_NUMBER = r"{name}=(-?[\d.]+(?:e-?\d+)?)"
_OTHER = "a log line about something else"
_SHORTEST_LIMIT = 17  # shorter texts may well have as many tokens as characters
_ENDPOINTS = {
    "chatcmpl-": "/v1/chat/completions",
    "cmpl-": "/v1/completions",
    "resp_": "/v1/responses",
    "embd-": "/v1/embeddings",
    "score-": "/score",
    "classify-": "/classify",
    "pooling-": "/pooling",
    "tokenize-": "/tokenize",
    "transcribe-": "/v1/audio/transcriptions",
    "translate-": "/v1/audio/translations",
}


class _Open(msgspec.Struct):
    """A request as far as the log has told of it."""

    id: str
    arrived_unix_s: float | None
    received: bool = False
    pooling: bool = False
    asked: Asked = Asked()
    model: str | None = None
    stream: bool | None = None
    prompt: str | None = None
    ids: list[int] | None = None
    whole_tokens: int | None = None  # of answers logged as a whole, all choices together
    delta_tokens: int | None = None
    answer: str | None = None
    reason: str | None = None
    first_s: float | None = None
    ended_s: float | None = None

    @property
    def output_tokens(self) -> int | None:
        return self.delta_tokens if self.whole_tokens is None else self.whole_tokens


def read_vllm(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """Requests in the order of their first line; lines of other kinds are counted."""
    found: list[_Open] = []
    latest: dict[str, _Open] = {}  # an id may come again, since clients may choose it
    bodies: dict[str, dict[str, Any]] = {}
    for line in source.lines():
        if not line.strip():
            continue
        text, at_s = _said(line, source.changed_s)
        match = _MESSAGE.search(text)
        if match is None:
            yield Skipped(_OTHER)
            continue
        kind, name, phase, body, rest = match.groups()
        request = latest.get(name)
        if body is not None:
            bodies[name] = _json(rest)
        elif kind == "Generated response":
            if request is None:
                yield Skipped("an answer to a request that the log does not show")
            else:
                _generated(request, phase, rest, at_s)
        else:
            if request is None or request.received:
                request = latest[name] = _Open(name, at_s)
                found.append(request)
            rest = _prompt(request, rest)
            if kind == "Received request":
                request.received = True
                _parameters(request, rest)
                _of_body(request, bodies)
    _forget_cut(found)
    for request in found:
        yield _entry(request, hasher)


def _entry(request: _Open, hasher: Hasher) -> Entry:
    prompt = None if request.prompt is None else request.prompt.encode("utf-8", "surrogatepass")
    if prompt is None and request.ids is not None:
        prompt = b"".join(token.to_bytes(8, "little") for token in request.ids)
    body: dict[str, Any] | None = None if request.prompt is None else {"prompt": request.prompt}
    start_s = request.arrived_unix_s
    known = request.ids is not None or request.output_tokens is not None
    return Entry(
        id=request.id,
        arrived_unix_s=start_s,
        endpoint=_endpoint(request),
        model=request.model,
        asked=request.asked
        if request.stream is None
        else msgspec.structs.replace(request.asked, stream=request.stream),
        prompts=1,
        prompt_tokens=None if request.ids is None else len(request.ids),
        output_tokens=request.output_tokens,
        tokens_source="token ids in vLLM's log" if known else None,
        prompt_size=None if prompt is None else len(prompt),
        blocks=None if prompt is None else hasher.blocks(prompt),
        finish_reasons=None if request.reason is None else (request.reason,),
        first_token_after_s=_after(start_s, request.first_s),
        ended_after_s=_after(start_s, request.ended_s),
        request=body,
        answer=request.answer,
    )


def _after(start_s: float | None, at_s: float | None) -> float | None:
    return None if start_s is None or at_s is None else max(0.0, at_s - start_s)


def _prompt(request: _Open, text: str) -> str:
    """Takes prompt and ids; returns what follows the prompt, without quoted texts, which may look like fields."""
    if match := _PROMPT.match(text):
        request.prompt = request.prompt if match[1] == "None" else _literal(match[1])
        text = text[match.end() :]
    text = _QUOTED_TEXT.sub("''", text)
    if (match := _IDS.search(text)) and match[1] != "None":
        request.ids = [int(token) for token in match[1][1:-1].split(",") if token.strip()]
    return text


def _generated(request: _Open, phase: str | None, text: str, at_s: float | None) -> None:
    output = _OUTPUT.match(text)
    rest = text if output is None else text[output.end() :]
    reason = found[1] if (found := _REASON.search(rest)) and found[1] not in ("None", "streaming_complete") else None
    if (match := _OUTPUT_IDS.search(rest)) and match[1] != "None":
        count = len([token for token in match[1][1:-1].split(",") if token.strip()])
        if phase == "streaming delta":
            request.delta_tokens = (request.delta_tokens or 0) + count
        elif count or phase is None:  # the closing line of a stream has the whole text, but often no ids
            request.whole_tokens = (request.whole_tokens or 0) + count
    if phase is not None:
        request.stream = True
    if phase == "streaming delta":
        request.first_s = request.first_s or at_s
        if reason is not None:
            request.reason, request.ended_s = reason, at_s
        return
    request.ended_s = at_s
    request.reason = reason or request.reason
    if output is not None and output[1] != "None":
        request.answer = (request.answer or "") + (_literal(output[1]) or "")


def _forget_cut(requests: list[_Open]) -> None:
    """`--max-log-len` cuts texts to so many characters and ids to as many tokens: what reaches it has no known length."""
    limit = max((len(request.prompt) for request in requests if request.prompt is not None), default=0)
    cut = [request for request in requests if request.ids is not None and len(request.ids) == limit]
    if limit < _SHORTEST_LIMIT or not any(len(request.prompt or "") == limit for request in cut):
        return
    for request in requests:
        if len(request.prompt or "") == limit:
            request.prompt = None
        if request.ids is not None and len(request.ids) == limit:
            request.ids = None
        if request.whole_tokens == limit:
            request.whole_tokens = None


def _parameters(request: _Open, text: str) -> None:
    match = _PARAMS.search(text)
    if match is None:
        return
    if match[1] in (None, "PoolingParams"):  # None: only tokenised
        request.pooling = True
        return
    inside = match[2]
    whole = {name: _number(inside, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "n", "seed")}
    request.asked = Asked(
        max_tokens=_whole(whole["max_tokens"]),
        temperature=whole["temperature"],
        top_p=whole["top_p"],
        top_k=_whole(whole["top_k"]),
        n=_whole(whole["n"]),
        seeded=True if whole["seed"] is not None else None,
    )


def _of_body(request: _Open, bodies: dict[str, dict[str, Any]]) -> None:
    """The body is logged under an id without the endpoint's prefix."""
    body = bodies.pop(request.id, None) or bodies.pop(re.sub(r"^[a-z]+[-_]", "", request.id), None) or {}
    request.model = model if isinstance(model := body.get("model"), str) else None
    request.stream = stream if isinstance(stream := body.get("stream"), bool) else None


def _number(text: str, name: str) -> float | None:
    match = re.search(r"(?<!\w)" + _NUMBER.format(name=name), text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _endpoint(request: _Open) -> str | None:
    named = next((path for prefix, path in _ENDPOINTS.items() if request.id.startswith(prefix)), None)
    return named or ("/pooling" if request.pooling else None)


def _literal(text: str) -> str | None:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, str) else None


def _json(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _said(line: str, before_s: float) -> tuple[str, float | None]:
    """The message of a line without its wrapping, and when it was written."""
    outer = _json(line) if line.lstrip().startswith("{") else {}
    message = outer.get("message", outer.get("log"))
    text = _COLOUR.sub("", message if isinstance(message, str) else line).rstrip()
    at_s: float | None
    try:
        at_s = datetime.fromisoformat(str(outer.get("asctime")).replace(",", ".")).timestamp()
    except (ValueError, OverflowError):
        at_s = _stamp(text, before_s)
    return text, at_s


def _stamp(text: str, before_s: float) -> float | None:
    """Local time without a year, as vLLM writes it: the latest such time that is no more than a day after `before_s`."""
    if not (match := _STAMP.search(text)):
        return None
    year = datetime.fromtimestamp(before_s).year
    for candidate in (year + 1, year, year - 1):
        try:
            at_s = datetime(candidate, *(int(part) for part in match.groups())).timestamp()  # type: ignore[arg-type]
        except ValueError:
            continue
        if at_s <= before_s + 86_400:
            return at_s
    return None

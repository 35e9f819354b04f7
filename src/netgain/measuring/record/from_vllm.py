"""vLLM's request log: `Received request ...` lines, with `--enable-log-outputs` also `Generated response ...`.

Two shapes of the first are known: with prompt and ids in the line (until 2025), and split into an INFO line with the
parameters and a DEBUG line `Request ... details: prompt: ..., prompt_token_ids: ...` (later).
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

_STAMP = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR)\s+(\d{2})-(\d{2})\s+(\d{2}):(\d{2}):(\d{2})\b")
_RECEIVED = re.compile(r"Received request ([^\s:]+): (.*)$")
_DETAILS = re.compile(r"Request ([^\s:]+) details: (.*)$")
_GENERATED = re.compile(r"Generated response ([^\s:]+)(?: \((streaming delta|streaming complete)\))?: (.*)$")
_PROMPT = re.compile(r"prompt: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|None)")
_IDS = re.compile(r"(?<!output_)(?:prompt_)?token_ids: (\[[\d, ]*\]|None)")
_OUTPUT_IDS = re.compile(r"output_token_ids: (\[[\d, ]*\]|None)")
_OUTPUT = re.compile(r"output: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_REASON = re.compile(r"finish_reason: (\w+)")
_PARAMS = re.compile(r"(?:params|sampling_params): (SamplingParams|BeamSearchParams|PoolingParams)\((.*)\)")
_NUMBER = r"{name}=(-?[\d.]+(?:e-?\d+)?)"
_OTHER = "a log line about something else"


class _Open(msgspec.Struct):
    """A request as far as the log has told of it."""

    id: str
    arrived_unix_s: float | None
    asked: Asked = Asked()
    endpoint: str | None = None
    prompt: str | None = None
    ids: list[int] | None = None
    output_tokens: int | None = None
    answer: str | None = None
    reason: str | None = None
    first_s: float | None = None
    ended_s: float | None = None


def read_vllm(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """Requests in the order of their first line; lines of other kinds are counted."""
    found: dict[str, _Open] = {}
    for line in source.lines():
        if not line.strip():
            continue
        at_s = _stamp(line, source.year)
        if match := _RECEIVED.search(line):
            request = found.setdefault(match[1], _Open(match[1], at_s))
            request.asked = _asked(match[2])
            _prompt(request, match[2])
        elif match := _DETAILS.search(line):
            _prompt(found.setdefault(match[1], _Open(match[1], at_s)), match[2])
        elif match := _GENERATED.search(line):
            if match[1] not in found:
                yield Skipped("an answer to a request that the log does not show")
            else:
                _generated(found[match[1]], match[2], match[3], at_s)
        else:
            yield Skipped(_OTHER)
    for request in found.values():
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
        endpoint=_endpoint(request.id),
        asked=request.asked,
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


def _prompt(request: _Open, text: str) -> None:
    if (match := _PROMPT.search(text)) and match[1] != "None":
        request.prompt = _literal(match[1])
    if (match := _IDS.search(text)) and match[1] != "None":
        request.ids = [int(token) for token in match[1][1:-1].split(",") if token.strip()]


def _generated(request: _Open, phase: str | None, text: str, at_s: float | None) -> None:
    count = None
    if (match := _OUTPUT_IDS.search(text)) and match[1] != "None":
        count = len([token for token in match[1][1:-1].split(",") if token.strip()])
    if phase == "streaming delta":
        request.first_s = request.first_s or at_s
        if count is not None:
            request.output_tokens = (request.output_tokens or 0) + count
        if (match := _REASON.search(text)) and match[1] != "None":
            request.reason, request.ended_s = match[1], at_s
        return
    request.ended_s = at_s
    if count:  # the closing line of a stream has the whole text, but often no ids
        request.output_tokens = count
    if match := _OUTPUT.search(text):
        request.answer = _literal(match[1])
    if (match := _REASON.search(text)) and match[1] not in ("None", "streaming_complete"):
        request.reason = match[1]


def _asked(text: str) -> Asked:
    if not (match := _PARAMS.search(text)):
        return Asked()
    inside = match[2]
    whole = {name: _number(inside, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "n", "seed")}
    return Asked(
        max_tokens=_whole(whole["max_tokens"]),
        temperature=whole["temperature"],
        top_p=whole["top_p"],
        top_k=_whole(whole["top_k"]),
        n=_whole(whole["n"]),
        seeded=True if whole["seed"] is not None else None,
    )


def _number(text: str, name: str) -> float | None:
    match = re.search(r"(?<!\w)" + _NUMBER.format(name=name), text)
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _endpoint(request_id: str) -> str | None:
    if request_id.startswith("chatcmpl-"):
        return "/v1/chat/completions"
    return "/v1/completions" if request_id.startswith("cmpl-") else None


def _literal(text: str) -> str | None:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, str) else None


def _stamp(line: str, year: int) -> float | None:
    """Local time, as vLLM writes it."""
    if not (match := _STAMP.search(line)):
        return None
    try:
        return datetime(year, *(int(part) for part in match.groups())).timestamp()  # type: ignore[arg-type]
    except ValueError:
        return None

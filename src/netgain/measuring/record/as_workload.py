"""A recording as a workload: its texts where it has them, else made-up prompts with the same lengths and shared beginnings."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from netgain.errors import UsageError
from netgain.measuring.record.answers import MESSAGES, RESPONSES
from netgain.measuring.record.entry import Entry, Recording
from netgain.measuring.record.journal import is_recording, read_recording
from netgain.measuring.record.observation import KEPT_REQUEST_BYTES
from netgain.measuring.record.synthetic import synthetic_prompt
from netgain.measuring.workload.arrivals import Recorded
from netgain.measuring.workload.item import Item, Message, Workload
from netgain.measuring.workload.load import load_workload
from netgain.plain_file import as_text
from netgain.wording import count

MOST_ITEMS = 256
LONGEST_PROMPT = KEPT_REQUEST_BYTES
LONGEST_ANSWER = 1 << 20  # tokens

_CHAT = ("/chat/completions", RESPONSES, MESSAGES)
_COMPLETION = "/completions"
_DEFAULT_TEMPERATURE = 1.0  # what OpenAI's API takes where a request names none


class _Chosen(msgspec.Struct, frozen=True):
    """The requests of a recording that can be asked again, in order, and why others cannot."""

    items: tuple[Item, ...]
    arrived_unix_s: tuple[float | None, ...]
    left_out: Counter[str]
    synthetic: bool
    notes: tuple[str, ...]


def load_traffic(source: str | Path) -> Workload:
    """What `load_workload` loads, and recordings. Raises UsageError."""
    path = Path(source)
    return recorded_workload(path) if _holds_recording(path) else load_workload(source)


def recorded_workload(path: Path, most: int = MOST_ITEMS) -> Workload:
    """The first `most` requests that can be asked again. Raises UsageError when there is none."""
    chosen = _choose(path, most)
    notes = list(chosen.notes)
    if chosen.synthetic:
        notes.append(
            "What the texts say: this recording holds none, so prompts are synthetic text with the recorded lengths and shared "
            "beginnings, and answers have the recorded lengths whatever they say. Drafting cannot be judged on it."
        )
    for reason, number in sorted(chosen.left_out.items()):
        notes.append(f"{count(number, 'recorded request')}: {reason}.")
    return Workload(name=as_text(path.stem), items=chosen.items, synthetic=chosen.synthetic, notes=tuple(notes))


def recorded_arrivals(path: Path, speed: float = 1.0, most: int = MOST_ITEMS) -> Recorded:
    """When the items of `recorded_workload` came, for an open loop. Raises UsageError where the recording does not say."""
    times = _choose(path, most).arrived_unix_s
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        raise UsageError(f"{path} does not say when {len(times) - len(known)} of its requests came; use a closed loop")
    first = min(known)
    return Recorded(tuple(at - first for at in sorted(known)), speed)


def _choose(path: Path, most: int) -> _Chosen:
    recording: Recording | None = None
    items: list[Item] = []
    arrived: list[float | None] = []
    left_out: Counter[str] = Counter()
    notes: dict[str, None] = {}
    with_text: bool | None = None
    estimated = 0
    for line in read_recording(path):
        if isinstance(line, Recording):
            recording = line
            if with_text is not None and with_text != line.with_text:
                raise UsageError(f"{path} holds recordings with and without text; give each a file of its own")
            with_text = line.with_text
            notes.update(dict.fromkeys(f"Of the recording: {note}." for note in line.notes))
        elif isinstance(line, Entry):
            assert recording is not None
            place = len(items) + sum(left_out.values())
            found = _item(line, recording, f"{place:06d}")
            if isinstance(found, str):
                left_out[found] += 1
            elif len(items) == most:
                left_out[f"beyond the first {most}"] += 1
            else:
                items.append(found)
                arrived.append(line.arrived_unix_s)
                estimated += _is_estimate(line)
    if not items:
        reasons = "; ".join(f"{number}: {reason}" for reason, number in left_out.items()) or "it has none"
        raise UsageError(f"{path} holds no request that could be asked again ({reasons})")
    if estimated:
        notes[
            f"Exact output lengths of {count(estimated, 'request')}: the server gave no counts, chunks were counted instead."
        ] = None
    return _Chosen(tuple(items), tuple(arrived), left_out, not with_text, tuple(notes))


def _item(entry: Entry, recording: Recording, name: str) -> Item | str:
    """The request as an item, or why it cannot be one."""
    if entry.error is not None or (entry.status or 200) >= 400:
        return "failed when they were recorded"
    kind = _kind(entry)
    if kind is None:
        return "on an endpoint that generates no text"
    if (entry.prompts or 1) > 1:
        return "with several prompts in one"
    length = output_length(entry)
    limit = length if not recording.with_text else entry.asked.max_tokens or length
    if limit is None or limit < 1:
        return "whose output length is not known"
    if limit > LONGEST_ANSWER:
        return f"with answers of more than {LONGEST_ANSWER:,} tokens"
    asked: dict[str, Any] = {
        "id": name,
        "category": f"recorded {kind}",
        "max_tokens": limit,
        "temperature": _within(entry.asked.temperature),
        "top_p": entry.asked.top_p if entry.asked.top_p and 0.0 < entry.asked.top_p <= 1.0 else None,
        "top_k": entry.asked.top_k if entry.asked.top_k and entry.asked.top_k > 0 else None,
    }
    if recording.with_text:
        prompt = _recorded_prompt(entry, kind)
        if isinstance(prompt, str):
            return prompt
        return Item(**asked, **prompt)
    if max(entry.prompt_size or 0, entry.prompt_tokens or 0) > LONGEST_PROMPT:
        return f"with prompts longer than {LONGEST_PROMPT:,}"
    text = synthetic_prompt(entry, recording)
    if text is None:
        return "whose prompt length is not known"
    # the recorded length is kept whatever the model says to synthetic text
    return Item(**asked, ignore_eos=True, **_said(text, kind))


def output_length(entry: Entry) -> int | None:
    """Output tokens as counted, or the limit where the answer ran into it, or the chunks of a stream (about one token each)."""
    if entry.output_tokens is not None:
        return entry.output_tokens
    if entry.finish_reasons is not None and set(entry.finish_reasons) == {"length"} and entry.asked.max_tokens:
        return entry.asked.max_tokens
    return entry.chunks if entry.asked.stream else None


def _is_estimate(entry: Entry) -> bool:
    return entry.output_tokens is None and output_length(entry) == entry.chunks


Kind = Literal["chat", "completion"]


def _kind(entry: Entry) -> Kind | None:
    endpoint = entry.endpoint
    if endpoint is None:  # logs and traces that do not say
        return "completion"
    if endpoint.endswith(_CHAT):
        return "chat"
    return "completion" if endpoint.endswith(_COMPLETION) else None


def _said(text: str, kind: Kind) -> dict[str, Any]:
    return {"messages": (Message("user", text),)} if kind == "chat" else {"prompt": text}


def _recorded_prompt(entry: Entry, kind: Kind) -> dict[str, Any] | str:
    body = entry.request
    if not isinstance(body, dict):
        return "without a text that was read"
    if any(body.get(name) for name in ("system", "instructions", "previous_response_id", "conversation")):
        return "with instructions or a conversation beside their messages"
    if isinstance(body.get("input"), str | list):
        said = body["input"]
        body = {"messages": [{"role": "user", "content": said}] if isinstance(said, str) else said}
    if "messages" not in body:
        prompt = body.get("prompt")
        only = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
        return {"prompt": only} if isinstance(only, str) and only else "with token ids or nothing as their prompt"
    if entry.asked.tools:
        return "with tools"
    messages = list(_messages(body["messages"]))
    if not messages or any(message is None for message in messages):
        return "with messages other than texts of system, user and assistant"
    return {"messages": tuple(messages)}


_ROLES = get_args(Message.__annotations__["role"])


def _messages(messages: Any) -> Iterator[Message | None]:
    for message in messages if isinstance(messages, list) else ():
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if isinstance(content, list):
            texts = [
                part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
            ]
            content = (
                "\n".join(text for text in texts if text) if all(isinstance(text, str) for text in texts) else None
            )
        good = role in _ROLES and isinstance(content, str)
        yield msgspec.convert({"role": role, "content": content}, Message) if good else None


def _within(temperature: float | None) -> float:
    return _DEFAULT_TEMPERATURE if temperature is None else min(max(temperature, 0.0), 2.0)


def _holds_recording(path: Path) -> bool:
    try:
        if not path.expanduser().is_file():  # a pipe can be read once only
            return False
        with path.expanduser().open("rb") as file:
            return is_recording(file.readline(1 << 20))
    except (OSError, RuntimeError, ValueError):
        return False

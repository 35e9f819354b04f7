"""What a recording holds: one line for the recording itself, then one per request; no text unless it was asked for.

Every field that is not known is null. The same lines hold what the proxy saw, what was imported from other servers' logs,
and public traces.
"""

from typing import Annotated, Any, Literal

import msgspec

SCHEMA: Literal["netgain.recording"] = "netgain.recording"
VERSION = 1

Unit = Literal["bytes", "tokens"]
Source = Literal["proxy", "vllm", "litellm", "otel", "mooncake", "azure", "burstgpt"]


Count = Annotated[int, msgspec.Meta(ge=0)]


class Recording(msgspec.Struct, frozen=True, kw_only=True, tag="recording", tag_field="kind", omit_defaults=True):
    """The first line of a file. Blocks of requests can be compared within one `recording` only: its key is random, was never
    stored, and so cannot be used to guess texts. The parts of a rotated recording share it.

    `block_size` is in `block_unit`. `notes` say what readers must know, such as a coarse clock.
    """

    schema: Literal["netgain.recording"]  # always written, as is the next
    version: int
    recording: str
    source: Source
    created_unix_s: float
    netgain: str
    block_unit: Unit | None = None
    block_size: Annotated[int, msgspec.Meta(gt=0)] | None = None
    upstream: str | None = None
    with_text: bool = False
    part: int = 0
    notes: tuple[str, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a request that matter for a decision; None where it did not say."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    stream: bool | None = None
    seeded: bool | None = None
    stops: int | None = None
    tools: int | None = None
    response_format: str | None = None
    logprobs: bool | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="request", tag_field="kind", omit_defaults=True):
    """One request. Seconds after `arrived_unix_s` unless the name says otherwise.

    `arrived_s` is the arrival on the recorder's monotonic clock. `tokens_source` is where both token counts come from.
    `prompt_size` is the prompt's length in the recording's `block_unit`; `blocks` are chained ids of the prompt's blocks from
    its beginning, equal exactly where everything up to their end is equal; the last may be partial where the source has it so.
    `chunk_gap_s` gives p50, p95 and the largest gap between chunks of the body. `copied` is the share of the answer's words
    that a look-up of the last two words in prompt and answer would have predicted, a hint for drafting by copying.
    """

    id: str
    arrived_unix_s: float | None = None
    arrived_s: float | None = None
    method: str | None = None
    endpoint: str | None = None
    model: str | None = None
    asked: Asked = Asked()
    prompts: Count | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    output_tokens: Count | None = None
    tokens_source: str | None = None
    prompt_size: Count | None = None
    blocks: tuple[int, ...] | None = None
    status: int | None = None
    finish_reasons: tuple[str, ...] | None = None
    error: str | None = None
    head_after_s: float | None = None
    first_chunk_after_s: float | None = None
    first_token_after_s: float | None = None
    ended_after_s: float | None = None
    chunks: Count | None = None
    chunk_gap_s: tuple[float, float, float] | None = None
    answer_bytes: Count | None = None
    copied: float | None = None
    session: str | None = None
    tenant: str | None = None
    unread: str | None = None
    request: Any = None
    answer: str | None = None


class Closing(msgspec.Struct, frozen=True, kw_only=True, tag="closing", tag_field="kind", omit_defaults=True):
    """The last line of a recording that was ended properly. `lost` requests were served but could not be written."""

    recording: str
    written: int
    lost: int


Line = Recording | Entry | Closing

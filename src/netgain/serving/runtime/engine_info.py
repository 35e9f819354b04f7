"""What an engine says of itself: the model's card, records, reports and the rule of equal resources read it."""

from typing import Any

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What this engine really is, for logs, /v1/models, records and reports. `dtype` names the types that matrices are kept and
    multiplied in (see computed_types), `activations` what they are multiplied with, `memory_bytes` what all weights and the KV
    cache take together; `model_note` says what a user should know about how the model's files were read, `settings_note`
    where less is used than a setting asks for. `max_length` is what one request may have, prompt and answer together.
    `step_weight_bytes`, `layer_ops`, `head_ops` and `windowed` say what a step has to do (see roofline.StepWork), `step_cost`
    whether a step-cost curve was kept from before, and of when. Of `kv_token_bytes` the `draft` model takes
    `draft_kv_token_bytes`, and its weights come on top of the model's."""

    model: str
    source: str
    weights: str
    dtype: str
    activations: str
    model_note: str | None
    settings_note: str | None
    kv_dtype: str
    kernels: str
    kernels_note: str | None
    device: str
    devices: int
    threads: int
    memory_bytes: int
    max_running: int
    max_batch_tokens: int
    speculation: str
    prefix_caching: bool
    vocab_size: int
    max_length: int
    kv_tokens: int
    kv_token_bytes: int
    weight_bytes: int
    step_weight_bytes: int
    layer_ops: dict[str, int]
    head_ops: dict[str, int]
    windowed: bool
    step_cost: str
    kv_tiers: list[str]
    kv_policy: str
    kv_codecs: list[str]
    kv_codecs_measured: list[dict[str, Any]]
    kv_lossy: bool
    blending: dict[str, Any]
    draft: str | None
    draft_weight_bytes: int
    draft_kv_token_bytes: int

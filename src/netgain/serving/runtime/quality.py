"""What a model loses by the types of its weights and KV: its predictions on a bundled text beside those in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor

from netgain.cost import kept
from netgain.errors import UsageError
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kv import DTYPES as KV_DTYPES
from netgain.serving.model.load import LoadedModel, load_model

BLOCK_TOKENS = 16
CHUNK = 128  # places computed together: few enough that the logits of a large vocabulary fit
REFERENCE = ("fp32", "fp32")
Form = tuple[str, str]
"""(dtype of the weights, dtype of KV)"""

FORMS: tuple[Form, ...] = (("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16"), ("auto", "bf16"), ("auto", "int8"))


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Of one form, over the places of the text. `kl_mean` and `kl_p99` are nats of KL(float32 || this form) per place;
    `same_top` is the share of places whose likeliest token is float32's."""

    format: Literal[1] = 1
    dtype: str
    kv_dtype: str
    computed: tuple[str, ...]
    weight_bytes: int
    perplexity: float
    perplexity_fp32: float
    kl_mean: float
    kl_p99: float
    same_top: float
    tokens: int
    kernels: str
    taken: str


def bundled_text() -> str:
    return files("netgain.serving.runtime").joinpath("quality_text.txt").read_text(encoding="utf-8")


def measure_quality(
    source: str | Path, form: Form, kernels: Kernels, text: str, tell: Callable[[float], None]
) -> Quality:
    """Both models read `text` once; `tell` hears the share done. Raises UsageError for a text of fewer than two tokens."""
    reference = load_model(source, REFERENCE[0], kernels)
    candidate = load_model(source, form[0], kernels)
    tokens = reference.tokenizer.encode(text, start=True)[: reference.config.context]
    if len(tokens) < 2:
        raise UsageError(f"a text of {len(tokens)} tokens has nothing to predict")
    divergences, agreements, losses = [], [], ([], [])
    done = 0
    for expected, found in zip(
        _chunks(reference, tokens, REFERENCE[1]), _chunks(candidate, tokens, form[1]), strict=True
    ):
        targets = torch.tensor(tokens[done + 1 : done + 1 + len(expected)])
        for losses_of, logs in zip(losses, (expected, found), strict=True):
            losses_of.append(-logs.gather(1, targets[:, None]).squeeze(1))
        divergences.append((expected.exp() * (expected - found)).sum(1))
        agreements.append(expected.argmax(1) == found.argmax(1))
        done += len(expected)
        tell(done / (len(tokens) - 1))
    divergence = torch.cat(divergences).clamp_min(0.0)
    ours, theirs = (math.exp(float(torch.cat(of).mean())) for of in losses)
    return Quality(
        dtype=form[0],
        kv_dtype=form[1],
        computed=candidate.computed,
        weight_bytes=candidate.model.weight_bytes,
        perplexity=theirs,
        perplexity_fp32=ours,
        kl_mean=float(divergence.mean()),
        kl_p99=float(divergence.quantile(0.99)),
        same_top=float(torch.cat(agreements).double().mean()),
        tokens=done,
        kernels=kernels.name,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def kept_file(cache: Path, weights_digest: str, form: Form, kernels: str, text: str) -> Path:
    """Where the measurement of a form is kept (see cost.kept)."""
    subject = {
        "weights": weights_digest,
        "dtype": form[0],
        "kv_dtype": form[1],
        "kernels": kernels,
        "text": sha256(text.encode()).hexdigest(),
    }
    return kept.file_of(cache / "quality", subject)


def _chunks(loaded: LoadedModel, tokens: list[int], kv_dtype: str) -> Iterator[Tensor]:
    """Log-probabilities float64 [places, vocabulary] of the token after each place but the last."""
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    kv = PagedKV(loaded.config, blocks, BLOCK_TOKENS, KV_DTYPES[kv_dtype])
    table = torch.arange(blocks, dtype=torch.int32)[None]
    for start in range(0, len(tokens) - 1, CHUNK):
        part = torch.tensor(tokens[start : min(start + CHUNK, len(tokens) - 1)])
        positions = torch.arange(start, start + len(part))
        plan = loaded.model.kernels.plan(positions, torch.zeros(len(part), dtype=torch.int64), table, BLOCK_TOKENS)
        logits = loaded.model.forward(part, positions, plan, kv, torch.arange(len(part)))
        yield torch.log_softmax(logits.double(), dim=1)

"""What a model loses by the types of weights, activations and KV: its predictions on a bundled text beside those in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from netgain.cost import kept
from netgain.errors import UsageError
from netgain.serving.model.cache import PagedKV, block_bytes
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kv import DTYPES as KV_DTYPES
from netgain.serving.model.load import LoadedModel, load_model
from netgain.serving.model.quantise import VERSION as QUANTISER
from netgain.serving.model.weights import WeightSource, computed_types

BLOCK_TOKENS = 16
CHUNK = 128  # places computed together: few enough that what is worked out of their logits stays small
MOST_TOKENS = 1024  # of the text; the figures of more differ by less than between texts, and take longer
MOST_LOGITS = 1 << 27  # of the reference, 512 MiB: a larger vocabulary reads less of the text


class Form(NamedTuple):
    """Types of weights, KV and activations."""

    dtype: str
    kv_dtype: str
    activations: str = "auto"

    def __str__(self) -> str:
        rounded = "" if self.activations == "auto" else f" with {self.activations} activations"
        return f"{self.dtype} weights{rounded}, {self.kv_dtype} KV"


REFERENCE = Form("fp32", "fp32")
BY_DEFAULT = (  # weights and activations
    *(("bf16", used) for used in ("auto", "bf16")),
    ("fp16", "auto"),
    *((dtype, used) for dtype in ("int8", "auto", "int4") for used in ("auto", "fp32")),
)


class Quality(msgspec.Struct, frozen=True, kw_only=True, tag="measured", tag_field="outcome"):
    """Of one form, over `tokens` places of the text. `kl_mean` and `kl_p99` are nats of KL(float32 || this form) per place;
    `same_top` is the share of places whose likeliest token is float32's. `same_as` is the form under which tensors and products
    come out the same, so that nothing was measured anew. `computed` are the types that matrices are kept and multiplied in,
    `multiplied_with` those of the activations."""

    dtype: str
    kv_dtype: str
    activations: str
    same_as: str | None = None
    computed: tuple[str, ...]
    multiplied_with: tuple[str, ...]
    weight_bytes: int
    kv_bytes_per_token: int
    perplexity: float
    perplexity_fp32: float
    kl_mean: float
    kl_p99: float
    same_top: float
    tokens: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="outcome"):
    """A form that this model cannot have."""

    dtype: str
    kv_dtype: str
    activations: str
    why: str


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured of one model in one way; `text` is its SHA-256, `quantiser` the version of quantise.py."""

    format: Literal[2] = 2
    text: str
    kernels: str
    quantiser: int
    taken: str
    rows: tuple[Quality | Refused, ...]

    def row(self, form: Form) -> Quality | Refused | None:
        return next((row for row in self.rows if form_of(row) == form), None)


def form_of(row: Quality | Refused) -> Form:
    return Form(row.dtype, row.kv_dtype, row.activations)


def bundled_text() -> str:
    return files("netgain.serving.runtime").joinpath("quality_text.txt").read_text(encoding="utf-8")


def forms(dtypes: Sequence[str], kv_dtypes: Sequence[str], activations: Sequence[str] = ()) -> tuple[Form, ...]:
    """Every dtype with every KV dtype and activations. Without any: each dtype but float32 with the KV it is served with and all
    activations it may have, and `auto` with int8 KV; without one: `auto`, which for KV is bf16, or fp32 beside fp32."""
    if dtypes or kv_dtypes or activations:
        found = [
            (d, kv, used)
            for d in dtypes or ["auto"]
            for kv in kv_dtypes or ["auto"]
            for used in activations or ["auto"]
        ]
    else:
        found = [*((dtype, "auto", used) for dtype, used in BY_DEFAULT), ("auto", "int8", "auto")]
    return tuple(
        dict.fromkeys(
            Form(d, ("fp32" if d == "fp32" else "bf16") if kv == "auto" else kv, used) for d, kv, used in found
        )
    )


def firsts(weights: WeightSource, config: ModelConfig, wanted: Sequence[Form]) -> dict[Form, Form]:
    """By form the first of the wanted ones of its KV, float32 before all, under which every tensor and product comes out the
    same: a tensor is what it is stored as and what it is kept as. A form that this model cannot have is its own first."""
    seen: dict[tuple[str, ...], Form] = {}
    found: dict[Form, Form] = {}
    for form in dict.fromkeys([REFERENCE, *wanted]):
        try:
            types = computed_types(weights, config, form.dtype, form.activations)
        except UsageError:
            found[form] = form
        else:
            found[form] = seen.setdefault((form.kv_dtype, *types.values()), form)
    return found


def measure(
    source: str | Path,
    wanted: Sequence[Form],
    first: Mapping[Form, Form],
    kernels: Kernels,
    text: str,
    tell: Callable[[str, float], None],
) -> Iterator[Quality | Refused]:
    """The wanted forms, those of one set of weights together: the reference reads `text` once, each set is loaded once, and of
    forms that are the same by `first` (see `firsts`) one is measured.

    `tell` hears what is being read and the share of all that is done. Holds one model and the reference's logits at a
    time. Raises UsageError for a text of fewer than two tokens, and for a model whose predictions are no numbers.
    """
    loaded: LoadedModel | None = load_model(source, REFERENCE.dtype, kernels)
    assert loaded is not None
    most = min(MOST_TOKENS, loaded.config.context, MOST_LOGITS // loaded.config.vocab)
    tokens = loaded.tokenizer.encode(text, start=True)[:most]
    if len(tokens) < 2:
        raise UsageError(f"a text of {len(tokens)} tokens has nothing to predict")
    distinct = list(dict.fromkeys(first[form] for form in wanted))

    def read(model: LoadedModel, form: Form, number: int) -> Iterator[Tensor]:
        for share, logits in _chunks(model, tokens, form.kv_dtype):
            yield logits
            tell(str(form), (number + share) / (1 + len(distinct)))

    reference = _Reference(list(read(loaded, REFERENCE, 0)), torch.tensor(tokens[1:]))
    held = (REFERENCE.dtype, REFERENCE.activations)
    order = list(dict.fromkeys([held, *((form.dtype, form.activations) for form in distinct)]))
    distinct.sort(key=lambda form: order.index((form.dtype, form.activations)))
    for number, form in enumerate(distinct, start=1):
        try:
            if loaded is None or (form.dtype, form.activations) != held:
                loaded = None  # before the next one takes its memory
                loaded = load_model(source, form.dtype, kernels, activations=form.activations)
                held = (form.dtype, form.activations)
            found: Quality | str = reference.compare(loaded, form, read(loaded, form, number))
        except UsageError as error:
            found = str(error)
        for one in wanted:
            if first[one] != form:
                continue
            if isinstance(found, str):
                yield Refused(**one._asdict(), why=found)
            else:
                yield msgspec.structs.replace(found, **one._asdict(), same_as=str(form) if one != form else None)


class _Reference:
    """What float32 predicts at each place of the text: logits in pieces float32 [places, vocabulary], and what follows."""

    def __init__(self, logits: list[Tensor], targets: Tensor) -> None:
        self._logits, self._targets = logits, targets.split([len(piece) for piece in logits])
        self._normalisers = [_normaliser(piece) for piece in logits]
        if not all(bool(piece.isfinite().all()) for piece in self._normalisers):
            raise UsageError("the model's predictions in float32 are no numbers: its files are damaged")
        losses = map(_losses, logits, self._normalisers, self._targets)
        self._perplexity = math.exp(float(torch.cat(list(losses)).mean()))

    def compare(self, loaded: LoadedModel, form: Form, pieces: Iterator[Tensor]) -> Quality:
        """What `pieces`, the logits of another form, lose. Raises UsageError if they are no numbers."""
        divergences, agreements, losses = [], [], []
        for expected, norm, targets, found in zip(self._logits, self._normalisers, self._targets, pieces, strict=True):
            other = _normaliser(found)
            share = (expected - norm.float()[:, None]).exp_()
            divergences.append((share * (expected - found)).sum(1, dtype=torch.float64) + (other - norm))
            agreements.append(expected.argmax(1) == found.argmax(1))
            losses.append(_losses(found, other, targets))
        divergence, loss = torch.cat(divergences).clamp_min(0.0), float(torch.cat(losses).mean())
        if not math.isfinite(loss):
            raise UsageError("its predictions are no numbers")
        return Quality(
            **form._asdict(),
            computed=loaded.computed,
            multiplied_with=loaded.activations,
            weight_bytes=loaded.model.weight_bytes,
            kv_bytes_per_token=kv_bytes_per_token(loaded.config, form.kv_dtype),
            perplexity=math.exp(loss),
            perplexity_fp32=self._perplexity,
            kl_mean=float(divergence.mean()),
            kl_p99=float(divergence.quantile(0.99)),
            same_top=float(torch.cat(agreements).double().mean()),
            tokens=len(divergence),
        )


def _normaliser(logits: Tensor) -> Tensor:
    """log(sum(exp(logits))), float64 [places]."""
    most = logits.amax(1, keepdim=True)
    return (logits - most).exp_().sum(1, dtype=torch.float64).log_() + most[:, 0]


def _losses(logits: Tensor, normaliser: Tensor, targets: Tensor) -> Tensor:
    return normaliser - logits.gather(1, targets[:, None])[:, 0]


def _chunks(loaded: LoadedModel, tokens: list[int], kv_dtype: str) -> Iterator[tuple[float, Tensor]]:
    """The share read, and logits float32 [places, vocabulary] of the token after each place but the last."""
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    kv = PagedKV(loaded.config, blocks, BLOCK_TOKENS, KV_DTYPES[kv_dtype])
    table = torch.arange(blocks, dtype=torch.int32)[None]
    last = len(tokens) - 1
    for start in range(0, last, CHUNK):
        part = torch.tensor(tokens[start : min(start + CHUNK, last)])
        positions = torch.arange(start, start + len(part))
        plan = loaded.model.kernels.plan(positions, torch.zeros(len(part), dtype=torch.int64), table, BLOCK_TOKENS)
        yield (
            (start + len(part)) / last,
            loaded.model.forward(part, positions, plan, kv, torch.arange(len(part))),
        )


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> int:
    """Of one of the KV dtypes, in all layers."""
    return block_bytes(config, BLOCK_TOKENS, KV_DTYPES[kv_dtype]) // BLOCK_TOKENS


def kept_file(cache: Path, weights_digest: str) -> Path:
    """Where the measurement of a model is kept (see cost.kept)."""
    return kept.file_of(cache / "quality", {"weights": weights_digest})


def nothing_measured(kernels: Kernels, text: str, taken: str) -> Measured:
    """To which rows are added. What was measured otherwise (see same_way) has no place in it."""
    digest = sha256(text.encode()).hexdigest()
    return Measured(text=digest, kernels=kernels.name, quantiser=QUANTISER, taken=taken, rows=())


def same_way(one: Measured, other: Measured) -> bool:
    return (one.text, one.kernels, one.quantiser) == (other.text, other.kernels, other.quantiser)

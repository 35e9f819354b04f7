"""Rotary embeddings as files describe them: every spelling of every scaling variant read into one form, unknown variants
refused by name. Needs no torch; `rotary.py` computes with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from netgain.errors import UsageError
from netgain.serving.model.fields import Fields, shortest

HUGGINGFACE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
GGUF_KINDS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Frequencies theta**(-2i/head_dim), scaled as `kind` says; cos and sin are multiplied by `attention_factor`.

    default    nothing else counts
    linear     frequencies divided by `factor`
    llama3     low ones divided by `factor`, with a ramp between `low_freq_factor` and `high_freq_factor` wavelengths
               in the original context
    yarn       low ones divided by `factor`, with a ramp between `beta_slow` and `beta_fast` rotations in the original
               context (`truncate`: its ends rounded outwards)
    divided    each divided by its own entry of `divisors` (longrope's long or short factors, GGUF's rope_freqs)

    Raises UsageError for numbers that describe no rotation.
    """

    kind: str = "default"
    theta: float
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive = ("theta", "factor", "attention_factor", "low_freq_factor", "beta_fast", "beta_slow")
        for name in positive:
            if not 0 < getattr(self, name) < 1e30:
                raise UsageError(f"model configuration: RoPE {name} is {getattr(self, name)}, expected above 0")
        if self.kind in ("linear", "llama3", "yarn") and not 1 <= self.original_context <= 1 << 30:
            raise UsageError(f"model configuration: RoPE original context is {self.original_context} tokens")
        if not self.low_freq_factor < self.high_freq_factor < 1e30:
            raise UsageError(
                f"model configuration: RoPE high_freq_factor {self.high_freq_factor} is not above "
                f"low_freq_factor {self.low_freq_factor}"
            )
        if self.kind == "yarn" and self.theta <= 1:
            raise UsageError(f"model configuration: RoPE theta is {self.theta}, yarn needs one above 1")
        if not all(0 < divisor < 1e30 for divisor in self.divisors):
            raise UsageError("model configuration: a RoPE frequency factor is not above 0")

    def __str__(self) -> str:
        text = f"base {self.theta:g}"
        if self.kind in ("linear", "llama3", "yarn"):
            text += f", {self.kind} scaling by {self.factor:g}"
            text += f" from {self.original_context} tokens" if self.original_context else ""
        elif self.kind == "divided":
            text += f", every frequency divided by its own factor ({min(self.divisors):g} to {max(self.divisors):g})"
        return text + (f", attention factor {self.attention_factor:g}" if self.attention_factor != 1 else "")


class ReadRope(NamedTuple):
    """`context` is the longest sequence in tokens; `notes` say what a user should know."""

    rope: Rope
    context: int
    notes: tuple[str, ...]


def rope_from_huggingface(fields: Fields, context: int, head_dim: int) -> ReadRope:
    """From a config.json: `rope_scaling` or `rope_parameters`, with `type` or `rope_type`; `context` is the unscaled one.

    Raises UsageError naming a variant that is not computed.
    """
    settings = fields.table("rope_scaling")
    if not settings.values:
        settings = fields.table("rope_parameters")
    nested = [key for key, value in settings.values.items() if isinstance(value, dict)]
    if nested:
        raise UsageError(f"{fields.where}: RoPE settings per layer type ({nested[0]!r}) are not supported")
    for table in (fields, settings):
        table.refuse_unless("partial_rotary_factor", 1)
    theta = settings.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = settings.text("rope_type", settings.text("type", ""))
    if not kind and settings.number("factor", 1.0) != 1:
        raise UsageError(
            f"{fields.where}: RoPE scaling factor {settings.values['factor']} without a type is not supported; "
            f"supported types: {', '.join(HUGGINGFACE_KINDS)}"
        )
    if kind in ("", "default"):
        return ReadRope(Rope(theta=theta), context, ())
    if kind not in _HUGGINGFACE:
        supported = ", ".join(HUGGINGFACE_KINDS)
        raise UsageError(f"{fields.where}: RoPE scaling {kind!r} is not supported; supported: {supported}")
    given = (
        fields if "original_max_position_embeddings" in fields and kind in ("llama3", "yarn", "longrope") else settings
    )
    original = given.integer("original_max_position_embeddings", context)
    return _HUGGINGFACE[kind](settings, theta, context, original, head_dim)


def _linear(settings: Fields, theta: float, context: int, original: int, head_dim: int) -> ReadRope:
    factor, notes = _factor(settings, "linear", None)
    scaled, more = _scaled_context(context, original, factor)
    rope = Rope(kind="linear", theta=theta, factor=factor, original_context=original)
    return ReadRope(rope, scaled, notes + more)


def _dynamic(settings: Fields, theta: float, context: int, original: int, head_dim: int) -> ReadRope:
    settings.refuse_unless("alpha")
    note = (
        f"RoPE scaling 'dynamic' acts only beyond {context} tokens, the longest sequence that is served: its frequencies "
        "change with the length of the sequence, which keys kept from before would not follow"
    )
    return ReadRope(Rope(theta=theta), context, (note,))


def _llama3(settings: Fields, theta: float, context: int, original: int, head_dim: int) -> ReadRope:
    factor, notes = _factor(settings, "llama3", None)
    rope = Rope(
        kind="llama3",
        theta=theta,
        factor=factor,
        original_context=original,
        low_freq_factor=settings.number("low_freq_factor"),
        high_freq_factor=settings.number("high_freq_factor"),
    )
    return ReadRope(rope, context, notes)


def _yarn(settings: Fields, theta: float, context: int, original: int, head_dim: int) -> ReadRope:
    factor, notes = _factor(settings, "yarn", context / max(original, 1))
    if "attention_factor" in settings:
        attention = settings.number("attention_factor")
    else:
        scale, all_dim = settings.number("mscale", 0.0), settings.number("mscale_all_dim", 0.0)
        attention = _mscale(factor, scale) / _mscale(factor, all_dim) if scale and all_dim else _mscale(factor, 1.0)
    rope = Rope(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_context=original,
        attention_factor=attention,
        beta_fast=settings.number("beta_fast", 0.0) or 32.0,
        beta_slow=settings.number("beta_slow", 0.0) or 1.0,
        truncate=settings.flag("truncate", True),
    )
    scaled, more = _scaled_context(context, original, factor)
    return ReadRope(rope, scaled, notes + more)


def _longrope(settings: Fields, theta: float, context: int, original: int, head_dim: int) -> ReadRope:
    long, short = (settings.numbers(f"{name}_factor", head_dim // 2) for name in ("long", "short"))
    factor = settings.number("factor", context / max(original, 1))
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return _divided(long, short, theta, context, original, settings.number("attention_factor", default))


_HUGGINGFACE: Mapping[str, Callable[[Fields, float, int, int, int], ReadRope]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def rope_from_gguf(
    fields: Fields, tensor: Callable[[str], tuple[float, ...] | None], context: int, head_dim: int
) -> ReadRope:
    """From an architecture's GGUF keys, new (`rope.scaling.*`) or old (`rope.scale_linear`), and the tensors that hold
    frequency factors: `tensor` gives one by name, or None. Raises UsageError naming a variant that is not computed."""
    fields = Fields(fields.where, {key: _decimal(value) for key, value in fields.values.items()})
    theta = fields.number("rope.freq_base", 10000.0)
    value = fields.number("rope.scaling.factor", 0.0) or fields.number("rope.scale_linear", 0.0)
    settings = Fields(fields.where, {"factor": value} if value else {})
    kind = fields.text("rope.scaling.type", "")
    notes: tuple[str, ...] = ()
    if not kind and value not in (0, 1):
        kind = "linear"
        if "rope.scale_linear" not in fields:
            notes = (f"RoPE has a factor ({value:g}) but no scaling type; taken as linear",)
    kind = kind or "none"
    if kind not in GGUF_KINDS:
        raise UsageError(f"{fields.where}: RoPE scaling {kind!r} is not supported; supported: {', '.join(GGUF_KINDS)}")
    original = fields.integer("rope.scaling.original_context_length", context)
    divisors = tensor("rope_freqs.weight")
    if kind == "longrope":
        long, short = tensor("rope_factors_long.weight"), tensor("rope_factors_short.weight")
        if long is None or short is None:
            raise UsageError(f"{fields.where}: RoPE scaling 'longrope' needs tensors rope_factors_long and _short")
        read = _divided(long, short, theta, context, original, fields.number("rope.scaling.attn_factor", 1.0))
    elif kind == "yarn":
        read = _gguf_yarn(fields, settings, theta, context, original)
    elif kind == "linear":
        read = _linear(settings, theta, context, original, head_dim)
    else:
        read = ReadRope(Rope(theta=theta), context, ())
    if divisors is not None:
        if kind not in ("none", "linear"):
            raise UsageError(f"{fields.where}: rope_freqs.weight together with RoPE scaling {kind!r} is not supported")
        scaled = tuple(divisor * read.rope.factor for divisor in divisors)
        read = read._replace(rope=Rope(kind="divided", theta=theta, divisors=scaled))
    return read._replace(notes=notes + read.notes)


def _gguf_yarn(fields: Fields, settings: Fields, theta: float, context: int, original: int) -> ReadRope:
    """llama.cpp keeps the paper's attention factor apart: `attn_factor` multiplies it, where Hugging Face replaces it."""
    fields.refuse_unless("rope.scaling.yarn_ext_factor", 1, -1)
    factor, notes = _factor(settings, "yarn", context / max(original, 1))
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0)
    attention = _mscale(factor, 1.0) / (_mscale(factor, multiplier) if multiplier else 1.0)
    for key in ("attn_factor", "yarn_attn_factor"):
        attention *= fields.number(f"rope.scaling.{key}", 1.0)
    rope = Rope(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_context=original,
        attention_factor=attention,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )
    scaled, more = _scaled_context(context, original, factor)
    return ReadRope(rope, scaled, notes + more)


def _divided(
    long: tuple[float, ...], short: tuple[float, ...], theta: float, context: int, original: int, attention: float
) -> ReadRope:
    """longrope, one set of factors for every length: those of keys kept from before must not change under them."""
    beyond = context > original
    rope = Rope(kind="divided", theta=theta, divisors=long if beyond else short, attention_factor=attention)
    note = (
        f"RoPE scaling 'longrope' uses its long factors at every length, because the context of {context} tokens exceeds "
        f"the original {original}; transformers uses the short ones up to there"
    )
    return ReadRope(rope, context, (note,) if beyond and long != short else ())


def _factor(settings: Fields, kind: str, derived: float | None) -> tuple[float, tuple[str, ...]]:
    """The scaling factor; where it is missing the derived one, else 1, with a note."""
    if "factor" in settings:
        factor = settings.number("factor")
        if factor <= 0:
            raise UsageError(f"{settings.where}: RoPE scaling factor {factor:g} is not above 0")
        return factor, ()
    if derived and derived > 1:
        return derived, (f"RoPE scaling {kind!r} has no factor; {derived:g} follows from context and original context",)
    return 1.0, (f"RoPE scaling {kind!r} has no factor; taken as 1, so nothing is scaled",)


def _scaled_context(context: int, original: int, factor: float) -> tuple[int, tuple[str, ...]]:
    """How many tokens scaled positions reach: files state the length before scaling, or that after it, or both."""
    scaled = int(min(original * factor, float(1 << 30)))
    if scaled <= context:
        return context, ()
    return scaled, (f"the context is {scaled} tokens: RoPE scaling stretches {original} by {factor:g}",)


def _mscale(factor: float, multiplier: float) -> float:
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0


def _decimal(value: object) -> object:
    return shortest(value) if isinstance(value, float) else value

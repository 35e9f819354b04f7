"""The coder of an engine's tiers, from its settings and what was measured of its model."""

from pathlib import Path
from typing import Any

import msgspec

from netgain.cost.compression import Rates
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.ledger.clock import Clock
from netgain.serving.blocks.keys import Namespace
from netgain.serving.runtime.codec_gate.kept import Subject, read, usable
from netgain.serving.runtime.codec_gate.verdict import Row
from netgain.serving.runtime.kv_settings import KVTierSettings
from netgain.serving.runtime.tier_specs import parse_tier
from netgain.serving.tiers.codecs.coder import Coder, TierCodecs
from netgain.serving.tiers.codecs.in_numpy import InNumpy
from netgain.serving.tiers.codecs.names import LOSSLESS
from netgain.serving.tiers.codecs.registry import arithmetic, lossless
from netgain.serving.tiers.object import RAW


def build_coder(
    settings: KVTierSettings, namespace: Namespace, block_tokens: int, model: str, clock: Clock, notes: list[str]
) -> Coder | None:
    """None where there are no tiers; without codecs nothing is coded, but what others coded without loss is read. `notes`
    hears which codecs are lossy and what is known of their loss. Raises UsageError for a codec that this model may not be
    served with."""
    if not settings.tiers:
        return None
    subject = _subject(namespace, block_tokens)
    tiers = tier_codecs(settings)
    names = used_codecs(settings)
    lossy = [name for name in names if name not in LOSSLESS]
    if lossy and subject.kv_dtype == "int8":
        raise UsageError(
            f"KV that is kept in int8 is not rounded again ({lossy[0]}): use the codec zstd, or kv_dtype bf16"
        )
    computing = arithmetic() if names else InNumpy()  # nothing is compiled for what is not used
    codecs, known = {}, {}
    for name in names:
        codec, row = usable(name, subject, cache_folder(), computing, model, settings.codec_forced)
        codecs[name] = codec
        if row is not None:
            known[name] = _rates(row)
        if codec.lossy:
            loss = (
                "not measured"
                if row is None or row.loss is None
                else (
                    f"gate: {row.state}; perplexity {row.loss.perplexity_ratio.value - 1:+.2%}, KL {row.loss.kl.value:.4f}"
                )
            )
            notes.append(
                f"KV from tiers may be lossy ({codec.id}; {loss}): answers may differ from those without tiers"
            )
    return Coder(codecs, clock, tiers, known, lossless(computing))


def tier_codecs(settings: KVTierSettings) -> list[TierCodecs]:
    """What each tier says of its own codecs, else what is said of all."""
    found = []
    for tier in map(parse_tier, settings.tiers):
        names = settings.codec if tier.codec is None else tier.codec
        when = tier.codec_when or settings.codec_when
        found.append(TierCodecs(tuple(name for name in names if name != RAW), when))
    return found


def used_codecs(settings: KVTierSettings) -> list[str]:
    """Those of all tiers, raw not among them."""
    return list(dict.fromkeys(name for tier in tier_codecs(settings) for name in tier.names))


def measured_codecs(namespace: Namespace, block_tokens: int, cache: Path) -> list[dict[str, Any]]:
    """What was measured of codecs on this model, for those who decide about them: name, class, state of the gate, rates."""
    report = read(cache, _subject(namespace, block_tokens))
    return [
        {"name": row.name, "lossy": row.lossy, "state": row.state, "rates": msgspec.to_builtins(_rates(row))}
        for row in (report.rows if report else ())
    ]


def _subject(namespace: Namespace, block_tokens: int) -> Subject:
    return Subject(
        weights=namespace.weights,
        numerics=namespace.numerics,
        kv_dtype=namespace.kv_dtype,
        block_tokens=block_tokens,
    )


def _rates(row: Row) -> Rates:
    return Rates(ratio=row.ratio, encode_bytes_per_s=row.encode_bytes_per_s, decode_bytes_per_s=row.decode_bytes_per_s)

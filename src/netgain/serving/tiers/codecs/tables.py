"""What entropy coding of one model's KV knows beforehand: by channel where its numbers lie and how wide a bin is, and how often
each bin is met. Made once for a model from KV of ordinary text, and known by a digest, which is part of the codec's id."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from netgain.serving.tiers.codecs.bfloat16 import Bits, rounded, rounded_up, widened
from netgain.serving.tiers.codecs.bins import by_channel, symbols_of
from netgain.serving.tiers.codecs.codec import Damaged, Data, Floats, Form, as_floats
from netgain.serving.tiers.codecs.rans import SYMBOLS, frequencies

CLASSES = 16
DEPTHS = (
    0.5,
    1.0,
    1.5,
)  # bins in the first, middle and last third of the layers: early ones bear less (CacheGen, section 5.2)
KEYS = 0.5  # bins of keys in those of values: what a key is off by moves the attention itself
_ROUNDS = 12
_ANCHOR = 0.5  # bins of the first token, that others are told by, are so much of theirs


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays as little-endian bytes. [layers, 2 (K, V), channels]: `centre` and `step` (of the first token of a block, then of
    the others; bfloat16 [.., 2]) and `kind` (which of the `frequency` rows [16, 64]; same two). `by_anchor` [layers, 2]: the
    others are told as differences to the first token's number instead of to the centre."""

    format: Literal[1] = 1
    layers: int
    kv_heads: int
    head_dim: int
    by_anchor: bytes
    centre: bytes
    step: bytes
    kind: bytes
    frequency: bytes


class Read(NamedTuple):
    """The arrays of Tables, ready to compute with."""

    by_anchor: npt.NDArray[np.uint8]
    centre: Floats
    step: Floats
    kind: npt.NDArray[np.uint8]
    frequency: Bits


def pack(tables: Tables) -> bytes:
    return msgspec.msgpack.encode(tables)


def digest(packed: bytes) -> str:
    """16 hex digits."""
    return blake3(packed).hexdigest()[:16]


def unpack(packed: Data) -> tuple[Tables, Read]:
    """Raises Damaged for what `pack` never gave."""
    try:
        tables = msgspec.msgpack.decode(packed, type=Tables)
    except msgspec.DecodeError as error:
        raise Damaged(f"tables: {error}") from error
    layers, channels = tables.layers, tables.kv_heads * tables.head_dim
    if min(layers, tables.kv_heads, tables.head_dim) < 1:
        raise Damaged(f"tables of {layers} layers, {tables.kv_heads} heads of {tables.head_dim}")

    def array(data: bytes, kind: str, shape: tuple[int, ...]) -> Bits:
        if len(data) != np.dtype(kind).itemsize * int(np.prod(shape)):
            raise Damaged(f"tables: {len(data):,} bytes for {shape}")
        return np.frombuffer(data, kind).reshape(shape)

    read = Read(
        by_anchor=array(tables.by_anchor, "u1", (layers, 2)).astype(np.uint8),
        centre=widened(array(tables.centre, "<u2", (layers, 2, channels))),
        step=widened(array(tables.step, "<u2", (layers, 2, channels, 2))),
        kind=array(tables.kind, "u1", (layers, 2, channels, 2)).astype(np.uint8),
        frequency=array(tables.frequency, "<u2", (CLASSES, SYMBOLS)),
    )
    steps_are_numbers = np.all(np.isfinite(read.step)) and np.all(read.step >= 1e-35)
    frequencies_add_up = np.all(read.frequency > 0) and np.all(read.frequency.sum(1, dtype=np.int64) == 4096)
    if not (steps_are_numbers and np.all(np.isfinite(read.centre)) and frequencies_add_up):
        raise Damaged("tables: a centre, a step or a frequency is none")
    if np.any(read.kind >= CLASSES) or np.any(read.by_anchor > 1):
        raise Damaged("tables: there is no such class")
    return tables, read


def make(samples: Sequence[tuple[Data, Form]], width: float) -> Tables:
    """From KV of whole models, `width` being the bins' in standard deviations of what they divide. Raises ValueError for
    samples of several models, of a part of one, or of fewer than two tokens."""
    form = samples[0][1]
    if any(msgspec.structs.replace(one, tokens=form.tokens) != form for _, one in samples) or form.first_layer:
        raise ValueError("samples must be whole KV of one model")
    if sum(one.tokens for _, one in samples) < 2 or form.no_numbers:
        raise ValueError("samples must be plain numbers of at least two tokens")
    channels = form.kv_heads * form.head_dim
    by_anchor = np.zeros((form.layers, 2), np.uint8)
    centre = np.empty((form.layers, 2, channels), "<u2")
    step = np.empty((form.layers, 2, channels, 2), "<u2")
    counts = np.zeros((form.layers, 2, channels, 2, SYMBOLS), np.int64)
    for layer in range(form.layers):
        depth = DEPTHS[3 * layer // form.layers]
        for plane in range(2):
            blocks = [_channels(raw, one, layer, plane) for raw, one in samples]
            found = _plan(blocks, np.float32(width * depth * (KEYS if plane == 0 else 1.0)))
            by_anchor[layer, plane], centre[layer, plane], step[layer, plane] = found
            counts[layer, plane] = _count(blocks, *found)
    kind, frequency = _classes(counts.reshape(-1, SYMBOLS))
    return Tables(
        layers=form.layers,
        kv_heads=form.kv_heads,
        head_dim=form.head_dim,
        by_anchor=by_anchor.tobytes(),
        centre=centre.tobytes(),
        step=step.tobytes(),
        kind=kind.tobytes(),
        frequency=frequency.tobytes(),
    )


def _channels(raw: Data, form: Form, layer: int, plane: int) -> Floats:
    values = as_floats(raw, form.dtype).reshape(form.layers, 2, form.plane_values)
    return by_channel(values[layer, plane], plane, form)


def _plan(blocks: Sequence[Floats], bins: np.float32) -> tuple[int, Bits, Bits]:
    """Whether to tell differences to the first token, centres, and steps [channels, 2]: whatever spreads less."""
    whole = np.concatenate(blocks, axis=1).astype(np.float64)
    centre = rounded(whole.mean(1).astype(np.float32))
    spread = _spread(whole - widened(centre)[:, None])
    rest = [block[:, 1:].astype(np.float64) - block[:, :1] for block in blocks if block.shape[1] > 1]
    apart = _spread(np.concatenate(rest, axis=1)) if rest else spread
    least = 1e-6 * max(1.0, float(spread.max()))  # a channel that never moves still has bins
    by_anchor = float(np.log(np.maximum(apart, least)).mean()) < float(np.log(np.maximum(spread, least)).mean())
    first, others = (spread * _ANCHOR, apart) if by_anchor else (spread, spread)
    steps = np.stack([np.maximum(first, least), np.maximum(others, least)], axis=1) * bins
    return int(by_anchor), centre, rounded_up(steps.astype(np.float32))


def _spread(deviations: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By channel, what a normal law's standard deviation would be; a few numbers far out do not change it."""
    found: npt.NDArray[np.float64] = np.quantile(np.abs(deviations), 0.6827, axis=1)
    return found


def _count(blocks: Sequence[Floats], by_anchor: int, centre: Bits, step: Bits) -> npt.NDArray[np.int64]:
    """How often each channel has each symbol, [channels, 2, 64]."""
    out = np.zeros((len(centre), 2, SYMBOLS), np.int64)
    row = np.arange(len(centre))[:, None]
    for block in blocks:
        found = symbols_of(block, widened(centre), widened(step[:, 0]), widened(step[:, 1]), bool(by_anchor))
        np.add.at(out, (row, np.minimum(np.arange(block.shape[1]), 1), found.astype(np.int64)), 1)
    if not by_anchor:
        out[:] = out.sum(1, keepdims=True)
    return out


def _classes(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], Bits]:
    """Rows of like distributions share one of 16, each row in that which codes it in the fewest bits (Lloyd's iteration, begun
    by entropy). Deterministic."""
    share = (counts + 0.25) / (counts + 0.25).sum(1, keepdims=True)
    entropy = -(share * np.log2(share)).sum(1)
    kind = np.empty(len(counts), np.int64)
    kind[np.argsort(entropy, kind="stable")] = np.arange(len(counts)) * CLASSES // len(counts)
    for _ in range(_ROUNDS):
        together = np.stack([counts[kind == number].sum(0) for number in range(CLASSES)]) + 0.5
        bits = -(counts @ np.log2(together / together.sum(1, keepdims=True)).T)
        found = bits.argmin(1)
        if np.array_equal(found, kind):
            break
        kind = found
    totals = np.stack([counts[kind == number].sum(0) for number in range(CLASSES)])
    return kind.astype(np.uint8), frequencies(totals)

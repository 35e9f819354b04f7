"""Entropy-coded KV in the manner of CacheGen (arXiv 2310.07240, SIGCOMM 2024): bins that widen with depth, and static tables by
layer and channel. Attention sinks are kept as they are. Where a model's tokens are more alike than they are like the channel's
mean, the first token of a block is the anchor of the others; else the mean is, which tables.py finds out."""

import struct
from functools import lru_cache

import numpy as np

from netgain.serving.tiers.codecs import bins, rans, tables
from netgain.serving.tiers.codecs.arithmetic import Arithmetic, Codes, Coding, Entropy
from netgain.serving.tiers.codecs.codec import Damaged, Data, Form, check_raw

WIDTHS = {"cachegen-fine": 0.25, "cachegen": 0.4, "cachegen-coarse": 0.8}
"""Bins of values in the middle third of the layers, in standard deviations."""

_HEAD = struct.Struct(f"<II{rans.LANES}I")


class CacheGen:
    """Payload: how many words and how many numbers outside all bins, the 32 states, the words, the numbers. `packed` is what
    tables.pack gave for this model. Raises Damaged for tables that are none."""

    lossy = True

    def __init__(self, name: str, packed: bytes, arithmetic: Arithmetic) -> None:
        self.name = name
        self.id = f"{name}.1.{tables.digest(packed)}"
        self.table_bytes = len(packed)
        self._arithmetic = arithmetic
        self._of, self._read = tables.unpack(packed)
        self._slots = rans.slots(self._read.frequency)
        self._coding = lru_cache(maxsize=64)(self._coding_for)

    def cannot(self, form: Form) -> str | None:
        if form.no_numbers:
            return form.no_numbers
        of = self._of
        if (form.kv_heads, form.head_dim) != (of.kv_heads, of.head_dim) or form.first_layer + form.layers > of.layers:
            return f"its tables are of {of.layers} layers with {of.kv_heads} heads of {of.head_dim}"
        return None

    def encode(self, raw: Data, form: Form) -> bytes | None:
        check_raw(raw, form)
        found = self._arithmetic.entropy(raw, form, self._coding(form))
        if found is None:
            return None
        head = _HEAD.pack(len(found.words), len(found.outside) // form.item_bytes, *found.states.tolist())
        coded = b"".join((head, found.words.tobytes(), found.outside))
        return coded if len(coded) < len(raw) else None

    def decode(self, payload: Data, form: Form) -> Data:
        found = self._arithmetic.from_entropy(_split(payload, form), form, self._coding(form))
        if found is None:
            raise Damaged("words, states and numbers do not fit together")
        return found

    def _coding_for(self, form: Form) -> Coding:
        read, layers = self._read, slice(form.first_layer, form.first_layer + form.layers)
        kinds = np.empty((form.layers, 2, form.plane_values), np.uint8)
        for layer, of_layer in enumerate(read.kind[layers]):
            for plane in range(2):
                kinds[layer, plane] = bins.canonical(_by_token(of_layer[plane], form.tokens), plane, form)
        return Coding(
            by_anchor=np.ascontiguousarray(read.by_anchor[layers]),
            centre=np.ascontiguousarray(read.centre[layers]),
            first=np.ascontiguousarray(read.step[layers, :, :, 0]),
            others=np.ascontiguousarray(read.step[layers, :, :, 1]),
            kinds=kinds.reshape(-1),
            frequency=np.ascontiguousarray(read.frequency),
            start=rans.starts(read.frequency),
            slots=self._slots,
        )


def _by_token(kinds: Codes, tokens: int) -> Codes:
    """[channels, 2 (first token, others)] -> [channels, tokens]."""
    out = np.repeat(kinds[:, 1:], tokens, axis=1)
    out[:, 0] = kinds[:, 0]
    return out


def _split(payload: Data, form: Form) -> Entropy:
    """Raises Damaged unless the lengths add up and the states are some."""
    view = memoryview(payload)
    if len(view) < _HEAD.size:
        raise Damaged(f"{len(view)} bytes, the head alone has {_HEAD.size}")
    words, outside, *_ = _HEAD.unpack_from(view)
    end = _HEAD.size + 2 * words
    if end + outside * form.item_bytes != len(view):
        raise Damaged(f"{len(view):,} bytes, the head says {end + outside * form.item_bytes:,}")
    states = np.frombuffer(view, "<u4", rans.LANES, 8)
    if np.any(states < rans.START):
        raise Damaged("a state is none")
    return Entropy(states, np.frombuffer(view, "<u2", words, _HEAD.size), bytes(view[end:]))

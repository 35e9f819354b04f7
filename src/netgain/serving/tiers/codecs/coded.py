"""Stored objects with their payload coded, and back: a codec is a property of the object, its address stays the same."""

from collections.abc import Mapping

import msgspec

from netgain.serving.tiers.codecs.codec import Codec, Damaged, form_of
from netgain.serving.tiers.object import RAW, Reason, Refused, StoredObject


def encoded(stored: StoredObject, codec: Codec) -> StoredObject:
    """The raw object coded, or the object itself where that would not be smaller or cannot be."""
    form = form_of(stored.part, stored.shape, stored.tokens)
    if codec.id == RAW or stored.codec != RAW or codec.cannot(form) is not None:
        return stored
    payload = codec.encode(stored.payload, form)
    return stored if payload is None else msgspec.structs.replace(stored, codec=codec.id, payload=payload)


def decoded(stored: StoredObject, codecs: Mapping[str, Codec]) -> StoredObject:
    """The object raw; `codecs` by id. Raises Refused, nothing else."""
    if stored.codec == RAW:
        return stored
    codec = codecs.get(stored.codec)
    if codec is None:
        raise Refused(Reason.UNKNOWN_CODEC, f"{stored.codec[:40]!r}; known: {', '.join(sorted(codecs))}")
    form = form_of(stored.part, stored.shape, stored.tokens)
    if (why := codec.cannot(form)) is not None:
        raise Refused(Reason.WRONG_LAYOUT, f"{codec.id}: {why}")
    try:
        payload = codec.decode(stored.payload, form)
    except Damaged as error:
        raise Refused(Reason.DAMAGED, f"{codec.id}: {error}") from error
    return msgspec.structs.replace(stored, codec=RAW, payload=memoryview(payload))


def numerics(plain: str, codecs: Mapping[str, Codec]) -> str:
    """The numerics id of a namespace (keys.py) whose KV may have passed through `codecs`. Lossless ones change nothing. With a
    lossy one it is another namespace: what is in it, and what is computed on top, is never found by who expects the model's
    own KV, and the other way round."""
    lossy = sorted(id for id, codec in codecs.items() if codec.lossy)
    return f"{plain};lossy:{'+'.join(lossy)}" if lossy else plain

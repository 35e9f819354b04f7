"""Small stored objects for tests of tiers."""

from collections.abc import Iterable

from netgain.serving.tiers.object import Part, Shape, StoredObject, pack

SHAPE = Shape(kv_heads=3, head_dim=4, dtype="bfloat16", token_bytes=48, block_tokens=4)
ROOT = bytes(range(32))


def stored(number: int, layers: int = 2) -> StoredObject:
    """The KV of one block, another one for each number."""
    part = Part(key=number.to_bytes(32, "little"), first_layer=0, layers=layers)
    size = 4 * SHAPE.token_bytes * layers
    payload = ((number.to_bytes(3, "little") + b"kv") * (size // 5 + 1))[:size]
    return StoredObject(part=part, root=ROOT, shape=SHAPE, tokens=4, codec="raw", payload=payload)


def packed(number: int, layers: int = 2) -> tuple[bytes, bytes]:
    """Its address and its bytes."""
    one = stored(number, layers)
    return one.part.address(), pack(one)


def several(numbers: Iterable[int]) -> dict[bytes, bytes]:
    return dict(packed(number) for number in numbers)

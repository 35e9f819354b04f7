"""The form in which KV leaves the device: canonical bytes that say what they hold, and are refused when anything is amiss.

    magic "NGKV" | schema u16 | length of the fields u16 | length of the payload u64     little-endian
    fields, msgpack | xxh3-128 of everything before | payload, whose xxh3-128 is among the fields

The checksums find what media and killed writers do to bytes; against people who write to a tier on purpose they are no
protection.
"""

import struct
from enum import StrEnum

import msgspec
from blake3 import blake3
from xxhash import xxh3_128_digest

MAGIC = b"NGKV"
SCHEMA = 1
RAW = "raw"
TARGET = "target"
ADDRESS_BYTES = 32

_PREFIX = struct.Struct("<4sHHQ")
_DIGEST_BYTES = 16
_DOMAIN = "netgain stored KV address 1"


class Reason(StrEnum):
    """Why bytes found in a tier are not used."""

    TORN = "torn"
    FOREIGN = "foreign"
    NEWER = "newer"
    DAMAGED = "damaged"
    WRONG_KEY = "wrong_key"
    WRONG_NAMESPACE = "wrong_namespace"
    WRONG_LAYOUT = "wrong_layout"
    UNKNOWN_CODEC = "unknown_codec"


class Refused(Exception):
    """Bytes that are not the object asked for. Never reaches a request: a tier counts it by `reason` and has a miss."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Which KV: the block's key, the plane of it (the target's KV, a draft's), and which layers, so that a block can be
    stored whole or in runs of layers that are loaded one after the other."""

    key: bytes
    first_layer: int
    layers: int
    plane: str = TARGET

    def address(self) -> bytes:
        """Under what a tier keeps it: 32 bytes that depend on every field."""
        return blake3(msgspec.msgpack.encode(self), derive_key_context=_DOMAIN).digest()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """How the decoded bytes lie in memory: all heads, however many ranks there are; layer after layer, and in a layer K and V
    as `arrangement` says, in `dtype`. `token_bytes` is what one token takes in one layer, K and V and scales together."""

    kv_heads: int
    head_dim: int
    dtype: str
    token_bytes: int
    block_tokens: int
    arrangement: str = "K[head,dim,token] V[head,token,dim]"


class StoredObject(msgspec.Struct, frozen=True):
    """KV with everything needed to use it. `root` is the chain's root key (namespace and tenant), `tokens` how many of the
    block's tokens are there, `codec` how the payload is coded (with the digest of its tables, where it has any)."""

    part: Part
    root: bytes
    shape: Shape
    tokens: int
    codec: str
    payload: bytes | memoryview

    @property
    def decoded_bytes(self) -> int:
        return self.tokens * self.shape.token_bytes * self.part.layers


class Expected(msgspec.Struct, frozen=True):
    """What a reader can use. Objects of another model or layout have other addresses already; that they are refused here
    too holds off a writer that is wrong about its own keys."""

    shape: Shape
    root: bytes | None = None
    codecs: frozenset[str] = frozenset({RAW})

    def check(self, found: StoredObject) -> None:
        """Raises Refused where `found` is of no use."""
        if self.root is not None and found.root != self.root:
            raise Refused(
                Reason.WRONG_NAMESPACE, f"written under {found.root.hex()[:16]}, read under {self.root.hex()[:16]}"
            )
        if found.shape != self.shape:
            raise Refused(Reason.WRONG_LAYOUT, f"{found.shape} is stored, {self.shape} wanted")
        if found.codec not in self.codecs:
            raise Refused(Reason.UNKNOWN_CODEC, f"{found.codec[:40]!r}; known: {', '.join(sorted(self.codecs))}")


class _Fields(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    part: Part
    root: bytes
    shape: Shape
    tokens: int
    codec: str
    payload_digest: bytes


def pack(stored: StoredObject) -> bytes:
    """The object as bytes; the same object gives the same bytes in every process and on every machine.

    Raises ValueError for an object that `unpack` would refuse.
    """
    _validate(stored)
    fields = msgspec.msgpack.encode(
        _Fields(stored.part, stored.root, stored.shape, stored.tokens, stored.codec, xxh3_128_digest(stored.payload))
    )
    head = _PREFIX.pack(MAGIC, SCHEMA, len(fields), len(stored.payload)) + fields
    return b"".join((head, xxh3_128_digest(head), stored.payload))


def unpack(data: bytes | memoryview, address: bytes | None = None, expected: Expected | None = None) -> StoredObject:
    """The object in `data`, its payload not copied; `address` is what it was asked for by. Raises Refused, nothing else."""
    head, payload_bytes, stored, digest = _read_head(memoryview(data))
    if len(data) < head + payload_bytes:
        raise Refused(Reason.TORN, f"{len(data):,} bytes of {head + payload_bytes:,}")
    if len(data) > head + payload_bytes:
        raise Refused(Reason.DAMAGED, f"{len(data) - head - payload_bytes:,} bytes follow the payload")
    found = msgspec.structs.replace(stored, payload=memoryview(data)[head:])
    if address is not None and found.part.address() != address:
        raise Refused(Reason.WRONG_KEY, f"asked for {address.hex()[:16]}, found {found.part.address().hex()[:16]}")
    if expected is not None:
        expected.check(found)
    if xxh3_128_digest(found.payload) != digest:
        raise Refused(Reason.DAMAGED, "the payload's checksum is another")
    try:
        _validate(found)
    except ValueError as error:
        raise Refused(Reason.DAMAGED, str(error)) from error
    return found


def unpack_head(data: bytes | memoryview) -> StoredObject:
    """What the first bytes of an object say (64 KiB always suffice), with an empty payload. Raises Refused."""
    return _read_head(memoryview(data))[2]


def _read_head(data: memoryview) -> tuple[int, int, StoredObject, bytes]:
    """Where the payload begins, how long it is, the object without it, and the payload's checksum."""
    start = bytes(data[: len(MAGIC)])
    if start != MAGIC[: len(start)]:
        raise Refused(Reason.FOREIGN, f"begins with {start!r}")
    if len(data) < _PREFIX.size:
        raise Refused(Reason.TORN, f"{len(data)} bytes")
    _, schema, fields_bytes, payload_bytes = _PREFIX.unpack_from(data)
    if schema > SCHEMA:
        raise Refused(Reason.NEWER, f"schema {schema}, this version reads {SCHEMA}")
    if schema < SCHEMA:
        raise Refused(Reason.FOREIGN, f"schema {schema}, this version reads {SCHEMA}")
    fields_end = _PREFIX.size + fields_bytes
    end = fields_end + _DIGEST_BYTES
    if len(data) < end:
        raise Refused(Reason.TORN, f"{len(data)} bytes, the header alone has {end}")
    if xxh3_128_digest(data[:fields_end]) != bytes(data[fields_end:end]):
        raise Refused(Reason.DAMAGED, "the header's checksum is another")
    raw = bytes(data[_PREFIX.size : fields_end])
    try:
        fields = msgspec.msgpack.decode(raw, type=_Fields)
    except msgspec.DecodeError as error:
        raise Refused(Reason.DAMAGED, f"the header cannot be read: {error}") from error
    if msgspec.msgpack.encode(fields) != raw:
        raise Refused(Reason.DAMAGED, "the header is not in canonical form")
    stored = StoredObject(fields.part, fields.root, fields.shape, fields.tokens, fields.codec, b"")
    return end, payload_bytes, stored, fields.payload_digest


def _validate(stored: StoredObject) -> None:
    """Raises ValueError for what cannot be KV."""
    part, shape = stored.part, stored.shape
    if len(part.key) != ADDRESS_BYTES or len(stored.root) != ADDRESS_BYTES:
        raise ValueError(f"keys have {ADDRESS_BYTES} bytes, not {len(part.key)} and {len(stored.root)}")
    if part.first_layer < 0 or min(part.layers, shape.kv_heads, shape.head_dim, shape.token_bytes) < 1:
        raise ValueError(f"no KV has the layout {part} {shape}")
    if not 1 <= stored.tokens <= shape.block_tokens:
        raise ValueError(f"{stored.tokens} tokens in a block of {shape.block_tokens}")
    if len(stored.codec) + len(shape.dtype) + len(shape.arrangement) + len(part.plane) > 1024:
        raise ValueError("the names of codec, dtype, arrangement and plane have more than 1,024 characters")
    if stored.codec == RAW and len(stored.payload) != stored.decoded_bytes:
        raise ValueError(f"{len(stored.payload):,} bytes of raw payload, the layout says {stored.decoded_bytes:,}")

"""The form in which KV leaves the device: canonical bytes that say what they hold, and are refused when anything is amiss.

    magic "NGKV" | schema u16 | length of the fields u16 | length of the payload u64     little-endian
    fields, msgpack | xxh3-128 of everything before | payload
    among the fields: xxh3-128 of the payload; of one that is raw and in the clear, of each run of its layers (see run_layers)

The checksums find what media and killed writers do to bytes; against people who write to a tier on purpose they are no
protection. Sealed payloads (vault.py) are: their checksum, of the encrypted bytes, needs no key, and the seal binds the rest.
"""

import struct
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from blake3 import blake3
from xxhash import xxh3_128_digest

from netgain.serving.blocks.retention import CLOCKS_DIFFER_S

MAGIC = b"NGKV"
SCHEMA = 3
RAW = "raw"
TARGET = "target"
ADDRESS_BYTES = 32
HEAD_BYTES = 2048  # in which every header fits

_PREFIX = struct.Struct("<4sHHQ")
_DIGEST_BYTES = 16
_SEAL_BYTES = 16  # that sealing adds to a payload
_KEY_ID_BYTES, _NONCE_BYTES = 16, 24
_DOMAIN = "netgain stored KV address 1"
_RUNS = 16  # of layers, at most: their checksums must fit the header


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
    EXPIRED = "expired"  # older than may be kept
    UNSEALED = "unsealed"  # in the clear where only sealed ones are used
    NO_KEY = "no_key"  # sealed with a key that is not here, destroyed ones among them
    FORGED = "forged"  # sealed, and not as it says


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


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """With what a payload is encrypted and authenticated: the name of the key (16 random bytes) and the nonce (24)."""

    key_id: bytes
    nonce: bytes


class StoredObject(msgspec.Struct, frozen=True):
    """KV with everything needed to use it. `root` is the chain's root key (namespace and tenant), `tokens` how many of the
    block's tokens are there, `codec` how the payload is coded (with the digest of its tables, where it has any).

    `written_s` is when its KV was first computed, in whole Unix seconds (None: the writer did not say), `tenant` whose it is
    where that is no secret (of a sealed object the key's name tells who may know), `seal` None where the payload is in the clear.
    """

    part: Part
    root: bytes
    shape: Shape
    tokens: int
    codec: str
    payload: bytes | memoryview
    written_s: int | None = None
    tenant: str | None = None
    seal: Seal | None = None

    @property
    def decoded_bytes(self) -> int:
        return self.tokens * self.shape.token_bytes * self.part.layers


class Expected(msgspec.Struct, frozen=True):
    """What a reader can use. Objects of another model or layout have other addresses already; that they are refused here
    too holds off a writer that is wrong about its own keys. `others` are the shapes of planes that have one of their own."""

    shape: Shape
    root: bytes | None = None
    codecs: frozenset[str] = frozenset({RAW})
    sealed: bool = False  # whether objects in the clear are refused
    others: dict[str, Shape] = {}

    def check(self, found: StoredObject) -> None:
        """Raises Refused where `found` is of no use."""
        if self.root is not None and found.root != self.root:
            raise Refused(
                Reason.WRONG_NAMESPACE, f"written under {found.root.hex()[:16]}, read under {self.root.hex()[:16]}"
            )
        shape = self.others.get(found.part.plane, self.shape)
        if found.shape != shape:
            raise Refused(Reason.WRONG_LAYOUT, f"{found.shape} is stored, {shape} wanted")
        if found.codec not in self.codecs:
            raise Refused(Reason.UNKNOWN_CODEC, f"{found.codec[:40]!r}; known: {', '.join(sorted(self.codecs))}")
        if self.sealed and found.seal is None:
            raise Refused(Reason.UNSEALED, "in the clear, where sealed objects alone are used")


class _Fields(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    part: Part
    root: bytes
    shape: Shape
    tokens: int
    codec: str
    written_s: int | None
    tenant: str | None
    seal: Seal | None
    digests: tuple[bytes, ...]


def _fields(stored: StoredObject, digests: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode(
        _Fields(
            stored.part,
            stored.root,
            stored.shape,
            stored.tokens,
            stored.codec,
            stored.written_s,
            stored.tenant,
            stored.seal,
            tuple(digests),
        )
    )


Digest = bytes


class Head(msgspec.Struct, frozen=True):
    """What the first bytes of an object say: the object with an empty payload, where that begins and ends, which is where the
    object ends, and its checksums: of each run of layers, or one of all of it."""

    stored: StoredObject
    payload_at: int
    bytes: int
    digests: tuple[Digest, ...]

    @property
    def layer_bytes(self) -> int:
        """What a layer takes in a raw payload."""
        return self.stored.tokens * self.stored.shape.token_bytes


def run_layers(layers: int) -> int:
    """How many layers have a checksum together."""
    return -(-layers // _RUNS)


def associated(stored: StoredObject) -> bytes:
    """The header as a seal binds it: everything but the checksums and the length, which the seal's tag covers itself."""
    return MAGIC + SCHEMA.to_bytes(2, "little") + _fields(stored, ())


def pack(stored: StoredObject) -> bytes:
    """The object as bytes; the same object gives the same bytes in every process and on every machine.

    Raises ValueError for an object that `unpack` would refuse.
    """
    _validate(stored, len(stored.payload))
    fields = _fields(stored, [xxh3_128_digest(piece) for piece in _pieces(stored, stored.payload)])
    head = _PREFIX.pack(MAGIC, SCHEMA, len(fields), len(stored.payload)) + fields
    return b"".join((head, xxh3_128_digest(head), stored.payload))


def unpack(data: bytes | memoryview, address: bytes | None = None, expected: Expected | None = None) -> StoredObject:
    """The object in `data`, its payload not copied; `address` is what it was asked for by. Raises Refused, nothing else."""
    head = checked_head(data, address, expected)
    if len(data) < head.bytes:
        raise Refused(Reason.TORN, f"{len(data):,} bytes of {head.bytes:,}")
    if len(data) > head.bytes:
        raise Refused(Reason.DAMAGED, f"{len(data) - head.bytes:,} bytes follow the payload")
    payload = memoryview(data)[head.payload_at :]
    if tuple(xxh3_128_digest(piece) for piece in _pieces(head.stored, payload)) != head.digests:
        raise Refused(Reason.DAMAGED, "the payload's checksum is another")
    return msgspec.structs.replace(head.stored, payload=payload)


def checked_head(data: bytes | memoryview, address: bytes | None = None, expected: Expected | None = None) -> Head:
    """The head, with all checks of `unpack` but those of the payload. Raises Refused, nothing else."""
    head = unpack_head(data)
    if address is not None and (found := head.stored.part.address()) != address:
        raise Refused(Reason.WRONG_KEY, f"asked for {address.hex()[:16]}, found {found.hex()[:16]}")
    if expected is not None:
        expected.check(head.stored)
    try:
        _validate(head.stored, head.bytes - head.payload_at)
    except ValueError as error:
        raise Refused(Reason.DAMAGED, str(error)) from error
    return head


def check_run(head: Head, first: int, layers: int, data: memoryview) -> None:
    """Raises Refused unless `data` are the layers from `first` on of a raw payload; both ends are ends of runs."""
    run = run_layers(head.stored.part.layers)
    if len(data) < layers * head.layer_bytes:
        raise Refused(Reason.TORN, f"{len(data):,} bytes of the {layers * head.layer_bytes:,} of {layers} layers")
    size = run * head.layer_bytes
    digests = tuple(xxh3_128_digest(data[at : at + size]) for at in range(0, len(data), size))
    if digests != head.digests[first // run : first // run + len(digests)]:
        raise Refused(Reason.DAMAGED, f"the checksum of the layers {first} to {first + layers - 1} is another")


def check_age(found: StoredObject, retention_s: float | None, unix_s: float) -> None:
    """Raises Refused where `found` was written more than `retention_s` before `unix_s`, or does not say when; also where it says
    a time to come, beyond what clocks differ by: then its age is not known."""
    if retention_s is None:
        return
    if found.written_s is None:
        raise Refused(Reason.EXPIRED, "it does not say when it was written")
    if found.written_s - unix_s > CLOCKS_DIFFER_S:
        raise Refused(
            Reason.EXPIRED, f"dated {found.written_s - unix_s:,.0f} s from now: the writer's clock or this one is wrong"
        )
    if unix_s - found.written_s > retention_s:
        raise Refused(Reason.EXPIRED, f"{unix_s - found.written_s:,.0f} s old, kept for {retention_s:,.0f} s")


def opened(data: bytes | memoryview) -> StoredObject:
    """An object that `unpack` accepted before, read again without the cost of its payload's checksum. Raises Refused where its
    header is not whole."""
    head = unpack_head(data)
    return msgspec.structs.replace(head.stored, payload=memoryview(data)[head.payload_at : head.bytes])


def unpack_head(data: bytes | memoryview) -> Head:
    """What the first bytes of an object say (HEAD_BYTES always suffice). Raises Refused."""
    data = memoryview(data)
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
    stored = StoredObject(
        fields.part,
        fields.root,
        fields.shape,
        fields.tokens,
        fields.codec,
        b"",
        fields.written_s,
        fields.tenant,
        fields.seal,
    )
    return Head(stored, end, end + payload_bytes, fields.digests)


def _pieces(stored: StoredObject, payload: bytes | memoryview) -> list[memoryview]:
    """A payload as its checksums see it."""
    view = memoryview(payload)
    if stored.codec != RAW or stored.seal is not None:
        return [view]
    size = run_layers(stored.part.layers) * stored.tokens * stored.shape.token_bytes
    return [view[at : at + size] for at in range(0, len(view), size)]


def _validate(stored: StoredObject, payload_bytes: int) -> None:
    """Raises ValueError for what cannot be KV."""
    part, shape = stored.part, stored.shape
    if len(part.key) != ADDRESS_BYTES or len(stored.root) != ADDRESS_BYTES:
        raise ValueError(f"keys have {ADDRESS_BYTES} bytes, not {len(part.key)} and {len(stored.root)}")
    if part.first_layer < 0 or min(part.layers, shape.kv_heads, shape.head_dim, shape.token_bytes) < 1:
        raise ValueError(f"no KV has the layout {part} {shape}")
    if not 1 <= stored.tokens <= shape.block_tokens:
        raise ValueError(f"{stored.tokens} tokens in a block of {shape.block_tokens}")
    names = (stored.codec, shape.dtype, shape.arrangement, part.plane, stored.tenant or "")
    if sum(len(name.encode()) for name in names) > 1024:
        raise ValueError("the names of codec, dtype, arrangement, plane and tenant have more than 1,024 bytes")
    if stored.written_s is not None and not 0 <= stored.written_s < 1 << 62:
        raise ValueError(f"{stored.written_s} is no time of writing")
    seal_bytes = 0
    if stored.seal is not None:
        seal_bytes = _SEAL_BYTES
        if len(stored.seal.key_id) != _KEY_ID_BYTES or len(stored.seal.nonce) != _NONCE_BYTES:
            raise ValueError(f"no seal has {len(stored.seal.key_id)} and {len(stored.seal.nonce)} bytes")
    if stored.codec == RAW and payload_bytes != stored.decoded_bytes + seal_bytes:
        raise ValueError(
            f"{payload_bytes:,} bytes of raw payload, the layout says {stored.decoded_bytes + seal_bytes:,}"
        )

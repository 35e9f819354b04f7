"""Codecs that give back every bit: KV as it is, and with each byte of a number in a stream of its own, through zstd."""

import struct

import numpy as np

from netgain.errors import Unavailable
from netgain.serving.tiers.codecs.codec import Codec, Damaged, Data, Form, check_raw
from netgain.serving.tiers.object import RAW
from netgain.wording import install_command

try:
    import zstandard
except ModuleNotFoundError:
    zstandard = None  # type: ignore[assignment]

_LENGTH = struct.Struct("<I")
_PAYS = 0.99  # of its size: a stream that shrinks less is kept as it is, and costs nothing to read


class Raw:
    """The bytes themselves."""

    name = id = RAW
    lossy = False
    table_bytes = 0

    def cannot(self, form: Form) -> str | None:
        return None

    def encode(self, raw: Data, form: Form) -> bytes | None:
        check_raw(raw, form)
        return bytes(raw)

    def decode(self, payload: Data, form: Form) -> Data:
        if len(payload) != form.raw_bytes:
            raise Damaged(f"{len(payload):,} bytes, the form says {form.raw_bytes:,}")
        return payload


class Zstd:
    """Signs and exponents of KV repeat, its low bits do not: each byte of a number goes into a stream of its own, and zstd
    takes the streams it can shrink."""

    name = "zstd"
    id = "zstd.1"
    lossy = False
    table_bytes = 0

    def __init__(self, level: int = 1) -> None:
        if zstandard is None:
            raise Unavailable(f"the codec zstd needs the zstandard package: {install_command('codecs')}")
        self._level = level

    def cannot(self, form: Form) -> str | None:
        return None

    def encode(self, raw: Data, form: Form) -> bytes | None:
        check_raw(raw, form)
        item = form.item_bytes
        lanes = np.frombuffer(raw, np.uint8).reshape(-1, item)
        parts: list[bytes] = []
        for lane in range(item):
            stream = np.ascontiguousarray(lanes[:, lane]).tobytes()
            small = zstandard.ZstdCompressor(level=self._level, write_checksum=False).compress(stream)
            kept = small if len(small) < _PAYS * len(stream) else stream
            parts += [_LENGTH.pack(len(kept)), kept]
        coded = b"".join(parts)
        return coded if len(coded) < len(raw) else None

    def decode(self, payload: Data, form: Form) -> Data:
        item = form.item_bytes
        size = form.raw_bytes // item
        out = np.empty((size, item), np.uint8)
        at, view = 0, memoryview(payload)
        for lane in range(item):
            if len(view) < at + _LENGTH.size:
                raise Damaged("a stream is missing")
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            stream = view[at : at + length]
            if len(stream) < length:
                raise Damaged(f"a stream has {len(stream):,} bytes of {length:,}")
            at += length
            out[:, lane] = np.frombuffer(stream if length == size else _unpacked(stream, size), np.uint8)
        if at != len(view):
            raise Damaged(f"{len(view) - at:,} bytes follow the last stream")
        return out.tobytes()


def _unpacked(stream: memoryview, size: int) -> bytes:
    """The frame's content, which must say that it has `size` bytes before any memory is taken for it."""
    try:
        told = zstandard.get_frame_parameters(stream).content_size
        if told != size:
            raise Damaged(f"a stream says it has {told:,} bytes, not {size:,}")
        found = zstandard.ZstdDecompressor().decompress(stream, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damaged(f"zstd: {error}") from error
    if len(found) != size:
        raise Damaged(f"a stream has {len(found):,} bytes, not {size:,}")
    return found


LOSSLESS: tuple[type[Codec], ...] = (Raw, Zstd)

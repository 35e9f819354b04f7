"""What a codec is: KV bytes in canonical form to fewer bytes and back, knowing nothing of where they are kept."""

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from netgain.serving.tiers.codecs.bfloat16 import rounded, widened
from netgain.serving.tiers.object import Part, Shape

Data = bytes | bytearray | memoryview
Floats = npt.NDArray[np.float32]
ITEM_BYTES = {"bfloat16": 2, "float32": 4}
ARRANGEMENT = "K[head,dim,token] V[head,token,dim]"
LARGEST = 1e30  # magnitude beyond which numbers are no KV: what follows from them could overflow


class Damaged(Exception):
    """A payload that this codec never wrote. Nothing else is raised for bytes from outside, whatever they are."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The canonical bytes that a codec sees: `layers` layers from `first_layer` on, and in each K [head, dim, token] before
    V [head, token, dim]. `token_bytes` is what a token takes in one layer."""

    first_layer: int
    layers: int
    kv_heads: int
    head_dim: int
    tokens: int
    dtype: str
    token_bytes: int

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES.get(self.dtype, 1)

    @property
    def plane_values(self) -> int:
        """Numbers of K, and as many of V, in one layer."""
        return self.kv_heads * self.head_dim * self.tokens

    @property
    def raw_bytes(self) -> int:
        return self.layers * self.tokens * self.token_bytes

    @property
    def no_numbers(self) -> str | None:
        """Why the bytes are no plain numbers (KV in int8, say, has scales between them), or None."""
        if self.dtype in ITEM_BYTES and self.token_bytes == 2 * self.kv_heads * self.head_dim * self.item_bytes:
            return None
        return f"KV in {self.dtype} with {self.token_bytes} bytes a token and layer is no plain bfloat16 or float32"


def form_of(part: Part, shape: Shape, tokens: int) -> Form:
    return Form(
        first_layer=part.first_layer,
        layers=part.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tokens=tokens,
        dtype=shape.dtype if shape.arrangement == ARRANGEMENT else f"{shape.dtype} {shape.arrangement}",
        token_bytes=shape.token_bytes,
    )


class Codec(Protocol):
    """Stateless, and safe to call from several threads. The same input gives the same bytes in every process and on every
    machine, compiled or not."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str:
        """Name, version and, where it has tables, their digest: all that decides what decoding gives."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether decoding gives other numbers than were encoded."""
        ...

    @property
    def table_bytes(self) -> int:
        """Bytes that a reader needs besides the payload, once for all objects."""
        ...

    def cannot(self, form: Form) -> str | None:
        """Why KV of this form cannot be coded, or None."""
        ...

    def encode(self, raw: Data, form: Form) -> bytes | None:
        """The payload; None where it would be no smaller, or the numbers are none (then they are kept raw). Raises ValueError
        unless `raw` has the form's size and `cannot(form)` is None."""
        ...

    def decode(self, payload: Data, form: Form) -> Data:
        """Exactly `form.raw_bytes` bytes. Raises Damaged."""
        ...


def check_raw(raw: Data, form: Form) -> None:
    if len(raw) != form.raw_bytes:
        raise ValueError(f"{len(raw):,} bytes, the form says {form.raw_bytes:,}: {form}")


def as_floats(raw: Data, dtype: str) -> Floats:
    if dtype == "float32":
        return np.frombuffer(raw, "<f4")
    return widened(np.frombuffer(raw, "<u2"))


def from_floats(values: Floats, dtype: str) -> bytes:
    """Rounded to nearest even."""
    return values.astype("<f4").tobytes() if dtype == "float32" else rounded(values).tobytes()

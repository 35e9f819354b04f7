"""Numbers of a channel to bins about its centre, or about the block's first token, and back."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from netgain.serving.tiers.codecs.codec import Floats, Form

MOST = 31  # bins on each side of the middle one
SINK = 0.3
ESCAPE = 63  # the symbol of a number outside all bins, which is kept as it is

Symbols = npt.NDArray[np.uint8]
Number = TypeVar("Number", bound=np.generic)


def sinks_of(values: Floats, form: Form) -> npt.NDArray[np.bool_]:
    """Which tokens [tokens] of V [layers, head * token * dim] are attention sinks: they draw much attention and say little, so
    that an error of theirs that is small beside a channel's spread changes all answers. Their V is below 0.3 of the block's
    largest in more than half of the layers and heads."""
    most = np.abs(values.reshape(form.layers * form.kv_heads, form.tokens, form.head_dim)).max(2)
    little = most < np.float32(SINK) * most.max(1, keepdims=True)
    found: npt.NDArray[np.bool_] = 2 * little.sum(0) > len(most)
    return found


def symbols_of(
    values: Floats,
    centre: Floats,
    first: Floats,
    others: Floats,
    by_anchor: bool,
    sinks: npt.NDArray[np.bool_] | None = None,
) -> Symbols:
    """values [channels, tokens]; centre and the widths of a bin for the first token and the others [channels]. Sinks are in no
    bin."""
    none = np.zeros(values.shape[1], np.bool_) if sinks is None else sinks
    begin = _bins(values[:, :1], centre[:, None], first)
    base = centre[:, None]
    if by_anchor:
        kept = (np.abs(begin) > MOST) | none[:1]
        base = np.where(kept, values[:, :1], begin * first[:, None] + base)
    bins = np.concatenate([begin, _bins(values[:, 1:], base, others)], axis=1)
    return np.where((np.abs(bins) > MOST) | none, ESCAPE, bins + MOST).astype(np.uint8)


def values_of(
    symbols: Symbols, outside: Floats, centre: Floats, first: Floats, others: Floats, by_anchor: bool
) -> Floats:
    """The middles of the bins, and `outside` [channels, tokens] where there is none."""
    bins = symbols.astype(np.float32) - np.float32(MOST)
    begin = np.where(symbols[:, :1] == ESCAPE, outside[:, :1], bins[:, :1] * first[:, None] + centre[:, None])
    base = begin if by_anchor else centre[:, None]
    rest = np.where(symbols[:, 1:] == ESCAPE, outside[:, 1:], bins[:, 1:] * others[:, None] + base)
    return np.concatenate([begin, rest], axis=1)


def by_channel(plane: npt.NDArray[Number], number: int, form: Form) -> npt.NDArray[Number]:
    """One layer's K (0) or V (1) -> [channels, tokens]."""
    if number == 0:
        return plane.reshape(-1, form.tokens)
    return plane.reshape(form.kv_heads, form.tokens, form.head_dim).swapaxes(1, 2).reshape(-1, form.tokens)


def canonical(by_token: npt.NDArray[Number], number: int, form: Form) -> npt.NDArray[Number]:
    """[channels, tokens] -> one layer's K or V as it is stored."""
    if number == 0:
        return by_token.reshape(-1)
    return by_token.reshape(form.kv_heads, form.head_dim, form.tokens).swapaxes(1, 2).reshape(-1)


def _bins(values: Floats, base: Floats, width: Floats) -> Floats:
    """In which bin each number lies, as whole float32."""
    found: Floats = np.rint((values - base) * (np.float32(1) / width)[:, None])
    return found

"""`netgain cache curve`: how much of recorded prompts a KV tier of each size would have had, before it is bought."""

import math
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from netgain.cost.quantity import Quantity, size, write_number, write_size
from netgain.cost.reuse import ReuseCurve, reuse_curve
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.record.prefixes import Prefixes, read_prefixes

_GIB = float(1 << 30)
_STEPS = 12  # sizes tried where none are given
_NEAR = 0.9  # of what unlimited room gives


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One size. `hit_rate` is of blocks, so nearly of tokens; `beyond_device` the part of it that the device's own pool does
    not give already; `hit_tokens` the mean length of a hit. `bytes` None where a token's is not known."""

    blocks: int
    bytes: float | None
    hit_rate: float
    request_hit_rate: float
    hit_tokens: float | None
    beyond_device: float | None = None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """`ideal` has room for everything; `near_ideal` is the least size that gives nine tenths of its hits."""

    trace: str
    prompts: int
    unknown: int
    unreadable: int
    blocks: int
    distinct_blocks: int
    block_tokens: float | None
    token_bytes: float | None
    device_hit_rate: float | None
    points: tuple[Point, ...]
    near_ideal: Point
    ideal: Point


def curve(
    trace: Annotated[
        Path, typer.Argument(help="A recording, or a trace in Mooncake's form.", metavar="TRACE", show_default=False)
    ],
    token_bytes: Annotated[
        Quantity | None,
        typer.Option(
            parser=size, help="KV of one token, such as 128KiB: netgain calc kv-size says it.", show_default=False
        ),
    ] = None,
    sizes: Annotated[
        list[Quantity] | None,
        typer.Option(
            "--size", parser=size, help="A size of the tier, such as 64GiB. May be repeated.", show_default=False
        ),
    ] = None,
    device: Annotated[
        Quantity | None, typer.Option(parser=size, help="Room for KV on the device already.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Hit rate by size of an LRU tier, exactly, from the prompts' blocks in order of arrival (stack distances).

    Every prompt is taken to be stored when it comes. A hit is not a gain yet: what loading costs is not in here.
    """
    found = read_prefixes(trace)
    if token_bytes is None and (sizes or device):
        raise UsageError("sizes in bytes need --token-bytes, the KV of one token, such as 128KiB")
    if token_bytes is not None and found.block_tokens is None:
        raise UsageError(
            f"{trace} cuts prompts in bytes and never says how many tokens they had: leave --token-bytes out"
        )
    answer = _curve(str(trace), found, token_bytes, sizes or [], device)
    if json:
        sys.stdout.write(to_json(answer).decode())
    else:
        _show(answer, found, Console(soft_wrap=True))


def _curve(
    trace: str, found: Prefixes, token_bytes: Quantity | None, sizes: list[Quantity], device: Quantity | None
) -> Curve:
    reuse = reuse_curve(found.prompts)
    block_bytes = None if token_bytes is None or found.block_tokens is None else token_bytes.value * found.block_tokens
    if block_bytes is not None and block_bytes <= 0:
        raise UsageError(f"--token-bytes {token_bytes} is no size of a token's KV")
    on_device = None if device is None or block_bytes is None else reuse.at(int(device.value / block_bytes)).hit_rate

    def point(blocks: int) -> Point:
        at = reuse.at(blocks)
        mean = None if at.mean_blocks is None or found.block_tokens is None else at.mean_blocks * found.block_tokens
        return Point(
            blocks=blocks,
            bytes=None if block_bytes is None else blocks * block_bytes,
            hit_rate=at.hit_rate,
            request_hit_rate=at.request_hit_rate,
            hit_tokens=mean,
            beyond_device=None if on_device is None else max(0.0, at.hit_rate - on_device),
        )

    asked = [int(one.value / block_bytes) for one in sizes] if block_bytes is not None else []
    return Curve(
        trace=trace,
        prompts=len(found.prompts),
        unknown=found.unknown,
        unreadable=found.unreadable,
        blocks=reuse.asked,
        distinct_blocks=reuse.distinct,
        block_tokens=found.block_tokens,
        token_bytes=None if token_bytes is None else token_bytes.value,
        device_hit_rate=on_device,
        points=tuple(point(blocks) for blocks in asked or _steps(reuse.distinct, block_bytes)),
        near_ideal=point(_least(reuse, _NEAR * reuse.at(None).hit_rate)),
        ideal=point(reuse.distinct),
    )


def _steps(distinct: int, block_bytes: float | None) -> list[int]:
    """Doubling sizes up to the one that holds everything: whole powers of two of GiB where bytes are known."""
    if block_bytes is None:
        top = max(0, math.ceil(math.log2(distinct)))
        return [min(distinct, 1 << power) for power in range(max(0, top - _STEPS + 1), top + 1)]
    top = math.ceil(math.log2(distinct * block_bytes / _GIB))
    in_bytes = [_GIB * 2.0**power for power in range(top - _STEPS + 1, top + 1)]
    return [blocks for one in in_bytes if (blocks := int(one / block_bytes))]


def _least(reuse: ReuseCurve, hit_rate: float) -> int:
    """The smallest size with at least that hit rate."""
    low, high = 0, reuse.distinct
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reuse.at(middle).hit_rate >= hit_rate else (middle + 1, high)
    return low


def _show(answer: Curve, found: Prefixes, console: Console) -> None:
    unit = f"{found.block_size} {found.block_unit}"
    if found.block_unit == "bytes" and found.block_tokens is not None:
        unit += f" (about {found.block_tokens:.0f} tokens)"
    console.print(
        f"{answer.prompts:,} prompts, {answer.blocks:,} blocks of {unit}, {answer.distinct_blocks:,} of them different; "
        f"with room for all {answer.ideal.hit_rate:.1%} are found again",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for name in ("tier", "blocks found", "requests with a hit", "mean hit"):
        table.add_column(name, justify="right")
    if answer.device_hit_rate is not None:
        table.add_column("beyond the device", justify="right")
    for point in answer.points:
        cells = [_size(point), f"{point.hit_rate:.1%}", f"{point.request_hit_rate:.1%}", _length(point)]
        if point.beyond_device is not None:
            cells.append(f"{point.beyond_device:.1%}")
        table.add_row(*cells)
    console.print(table)
    if answer.device_hit_rate is not None:
        console.print(f"the device's own room gives {answer.device_hit_rate:.1%} already")
    console.print(f"nine tenths of what is possible: {_size(answer.near_ideal)}")
    if answer.token_bytes is None:
        console.print("in GiB with --token-bytes, the KV of one token (netgain calc kv-size)")
    for number, what in ((answer.unknown, "whose blocks are not known"), (answer.unreadable, "that could not be read")):
        if number:
            console.print(f"left out: {number:,} requests {what}")


def _size(point: Point) -> str:
    if point.bytes is None:
        return f"{point.blocks:,} blocks"
    return write_size(point.bytes) if point.bytes < _GIB else f"{point.bytes / _GIB:,.1f} GiB"


def _length(point: Point) -> str:
    return "none" if point.hit_tokens is None else f"{write_number(round(point.hit_tokens))} tokens"

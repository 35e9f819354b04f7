"""What `netgain cache` found in one location, as figures and as tables."""

import datetime
from collections import Counter
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table

from netgain.cost.quantity import write_size, write_time
from netgain.serving.tiers.blending.stored import CHUNK
from netgain.serving.tiers.inventory import Found
from netgain.serving.tiers.object import Reason
from netgain.wording import count

ANONYMOUS = "(no tenant)"
SEALED = "(sealed)"  # with a key that the given vault has not


class Held(msgspec.Struct):
    """Objects of one kind. `tokens`: whose KV they hold, or a part of it."""

    objects: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, tokens: int, size: int) -> None:
        self.objects += 1
        self.tokens += tokens
        self.bytes += size


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One object. Unix seconds; None: it does not say. `tenant` None: none, or not known without the vault."""

    address: str
    tenant: str | None
    sealed: bool
    plane: str
    first_layer: int
    layers: int
    tokens: int
    codec: str
    bytes: int
    written_s: int | None


class Content(msgspec.Struct, kw_only=True):
    """All of one location. `tenants` by name as shown, `layouts` as KV heads x head dimension, type and block length; `roots`
    are different models, settings and cache salts. `notices`: what in a server's settings works against keeping KV there
    (None: it does not say). `refused` objects cannot be used, by their headers alone."""

    location: str
    objects: int = 0
    bytes: int = 0
    sealed: int = 0
    tenants: dict[str, Held] = {}
    codecs: dict[str, Held] = {}
    planes: dict[str, Held] = {}
    layouts: dict[str, Held] = {}
    roots: int = 0
    oldest_s: int | None = None
    newest_s: int | None = None
    undated: int = 0
    refused: dict[Reason, int] = {}
    foreign: int | None = None
    notices: tuple[str, ...] | None = None


class Verified(msgspec.Struct, kw_only=True):
    """Of one location: `unopened` objects are whole, but sealed with keys of a vault that was not given."""

    location: str
    objects: int
    bytes: int
    unopened: int
    refused: dict[Reason, int]
    removed: int | None


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """Of one location; `failed` says why not everything was done, None that it was. `unknown` objects are sealed, and whose
    they are is not known without their vault."""

    location: str
    looked_at: int = 0
    removed: int = 0
    bytes: int = 0
    unknown: int = 0
    failed: str | None = None


def content_of(location: str, found: Iterable[tuple[Found, str]], foreign: int | None) -> Content:
    """Add up; each object with its tenant as shown."""
    content = Content(location=location, foreign=foreign)
    roots, refused = set(), Counter[Reason]()
    for one, tenant in found:
        if one.head is None:
            refused[one.refused or Reason.DAMAGED] += 1
            continue
        stored, size = one.head.stored, one.head.bytes
        content.objects += 1
        content.bytes += size
        content.sealed += stored.seal is not None
        roots.add(stored.root)
        shape = stored.shape
        cut = "chunks" if stored.part.plane == CHUNK else f"blocks of {shape.block_tokens}"
        layout = f"{shape.kv_heads} x {shape.head_dim} {shape.dtype}, {cut}"
        for kinds, name in (
            (content.tenants, tenant),
            (content.codecs, stored.codec),
            (content.planes, stored.part.plane),
            (content.layouts, layout),
        ):
            kinds.setdefault(name, Held()).add(stored.tokens, size)
        if (written_s := stored.written_s) is None:
            content.undated += 1
        else:
            content.oldest_s = min(written_s, content.oldest_s or written_s)
            content.newest_s = max(written_s, content.newest_s or written_s)
    content.roots, content.refused = len(roots), dict(refused)
    return content


def row_of(found: Found, tenant: str) -> Row | None:
    if found.head is None:
        return None
    stored = found.head.stored
    return Row(
        address=found.address.hex(),
        tenant=None if tenant in (ANONYMOUS, SEALED) else tenant,
        sealed=stored.seal is not None,
        plane=stored.part.plane,
        first_layer=stored.part.first_layer,
        layers=stored.part.layers,
        tokens=stored.tokens,
        codec=stored.codec,
        bytes=found.head.bytes,
        written_s=stored.written_s,
    )


def show_content(content: Content, now_s: float, console: Console) -> None:
    console.print(
        f"{content.location}: {count(content.objects, 'object')}, {write_size(content.bytes)}, "
        f"{content.sealed} of them sealed, {count(content.roots, 'root')} (models, settings, cache salts)",
        markup=False,
    )
    if content.objects:
        table = _table("", "", "objects", "tokens", "bytes")
        for what, kinds in (
            ("tenant", content.tenants),
            ("codec", content.codecs),
            ("plane", content.planes),
            ("layout", content.layouts),
        ):
            for name, held in sorted(kinds.items(), key=lambda pair: -pair[1].bytes):
                table.add_row(what, name, f"{held.objects:,}", f"{held.tokens:,}", write_size(held.bytes))
                what = ""
        console.print(table)
        if content.oldest_s is not None and content.newest_s is not None:
            console.print(f"written {_age(content.oldest_s, now_s)} to {_age(content.newest_s, now_s)} ago")
    if content.undated:
        console.print(f"{count(content.undated, 'object')} without a time of writing")
    if content.refused:
        console.print(f"cannot be used: {_reasons(content.refused)}; remove with netgain cache verify --remove")
    if content.foreign:
        console.print(f"{count(content.foreign, 'file')} in the folder not netgain's, left alone")
    for notice in content.notices or ():
        console.print(f"note: {notice}", markup=False)


def show_rows(rows: list[Row], left_out: int, now_s: float, console: Console) -> None:
    table = _table("address", "tenant", "plane", "layers", "tokens", "codec", "bytes", "age")
    for row in rows:
        tenant = row.tenant or (SEALED if row.sealed else ANONYMOUS)
        layers = f"{row.first_layer}-{row.first_layer + row.layers - 1}"
        age = "unknown" if row.written_s is None else _age(row.written_s, now_s)
        cells = (
            row.address[:16],
            tenant,
            row.plane,
            layers,
            str(row.tokens),
            row.codec,
            write_size(row.bytes),
            age,
        )
        table.add_row(*cells)
    console.print(table)
    if left_out:
        console.print(f"and {left_out:,} more; --limit 0 shows all")


def show_verified(verified: Verified, console: Console) -> None:
    line = f"{verified.location}: {count(verified.objects, 'object')} whole, {write_size(verified.bytes)}"
    if verified.unopened:
        line += f" ({verified.unopened} sealed with keys that are not here, so their seals were not checked)"
    if verified.refused:
        line += f"; refused: {_reasons(verified.refused)}"
        line += ", not removed" if verified.removed is None else f"; {verified.removed} removed"
    console.print(line, markup=False)


def show_purged(purged: Purged, console: Console) -> None:
    done = f"{purged.removed} of {count(purged.looked_at, 'object')} removed, {write_size(purged.bytes)}"
    if purged.unknown:
        done += f"; whose {purged.unknown} sealed ones are is not known: give their vault with --vault"
    console.print(f"{purged.location}: {done if purged.failed is None else purged.failed}", markup=False)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in ("objects", "bytes", "tokens", "age") else "left")
    return table


def _age(written_s: int, now_s: float) -> str:
    seconds = max(0.0, now_s - written_s)
    return write_time(seconds) if seconds < 60 else str(datetime.timedelta(seconds=int(seconds)))


def _reasons(refused: dict[Reason, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(refused.items()))

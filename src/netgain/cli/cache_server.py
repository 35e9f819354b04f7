"""What a running server did with its KV tiers and with chunks since it started, from its /metrics."""

import asyncio
import os

import msgspec
from rich.console import Console
from rich.table import Table

from netgain.cost.quantity import write_number, write_size, write_time
from netgain.errors import Unavailable
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.scrape import snapshot

_PATIENCE_S = 10.0


class TierUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tier; None: it is not known. `hit_rate`: objects used of those asked for. `not_admitted` blocks were kept out by its
    rule, `demoted` objects it gave up to the tier below. `refused`, `unread` and `unwritten` are sums over the reasons in
    `refused_by`, `unread_by` and `unwritten_by`, which name those that occurred. `notices`:
    things that its server has set against keeping KV there."""

    hits: int
    misses: int
    refused: int
    unread: int
    unwritten: int
    refused_by: dict[str, int]
    unread_by: dict[str, int]
    unwritten_by: dict[str, int]
    not_admitted: int
    demoted: int
    loaded_bytes: int
    stored_bytes: int
    hit_rate: float | None
    load_bytes_per_s: float | None
    held_bytes: int | None
    capacity_bytes: int | None
    evictions: int
    notices: int | None
    broken: bool | None


class CodecUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one codec in one tier: objects stored in that form, how much smaller it made them, and the bandwidth above which raw
    is sooner."""

    tier: str
    codec: str
    stored: int
    ratio: float | None
    encode_s: float | None
    decode_s: float | None
    break_even_bytes_per_s: float | None


class Blending(msgspec.Struct, frozen=True, kw_only=True):
    """Of prompts with chunks. `chunks_left`: that tiers had, and that were sooner computed. `found_rate`: chunks that were there
    of all; `recomputed_ratio`: of their tokens, those computed anew. Seconds: moving chunks to their places, computing chunks by
    themselves, and all the rest."""

    requests: int
    exact_requests: int
    chunks_found: int
    chunks_missed: int
    chunks_fetched: int
    chunks_left: int
    found_rate: float | None
    chunk_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    recomputed_ratio: float | None
    alone_tokens: int
    rotation_s: float
    alone_s: float
    join_s: float
    memory_bytes: int | None


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the server's engines. `wasted_tokens`, so many bytes of KV, came and were not used.
    `blending` None: chunks are not joined there."""

    location: str
    lookups: int
    lookup_hits: int
    lookup_tokens: int
    found_tokens: int
    loaded_tokens: int
    wasted_tokens: int
    wasted_bytes: int
    recompute_chosen: int
    tiers: dict[str, TierUse]
    codecs: tuple[CodecUse, ...]
    blending: Blending | None


def is_server(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def read_server(location: str) -> ServerUse:
    """Raises UsageError for what is no address, Unavailable where no netgain answers. NETGAIN_API_KEY is sent where it is set."""
    url = base_url(location)
    key = os.environ.get("NETGAIN_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else None
    found = asyncio.run(snapshot(f"{url}/metrics", headers, _PATIENCE_S))
    if found is None:
        raise Unavailable(
            f"{url} gives no metrics: is a server running there? Where it asks for keys, set NETGAIN_API_KEY to an operator's"
        )
    if "netgain_steps_total" not in found.families:
        raise Unavailable(f"{url} gives metrics, but not netgain's: name a server that netgain serve started")
    return use_of(url, found)


def use_of(location: str, found: Snapshot) -> ServerUse:
    """What the metrics say."""
    figures = _Figures(found)
    tiers = {name: _tier(figures, name) for name in figures.labels("netgain_kv_tier_hits_total", "tier")}
    pairs = figures.pairs("netgain_kv_codec_stored_total") | figures.pairs("netgain_kv_codec_decode_seconds_total")
    return ServerUse(
        location=location,
        lookups=figures.count("netgain_kv_lookups_total"),
        lookup_hits=figures.count("netgain_kv_lookups_hit_total"),
        lookup_tokens=figures.count("netgain_kv_lookup_tokens_total"),
        found_tokens=figures.count("netgain_kv_found_tokens_total"),
        loaded_tokens=figures.count("netgain_kv_loaded_tokens_total"),
        wasted_tokens=figures.count("netgain_kv_wasted_tokens_total"),
        wasted_bytes=figures.count("netgain_kv_wasted_bytes_total"),
        recompute_chosen=figures.count("netgain_kv_recompute_chosen_total"),
        tiers=tiers,
        codecs=tuple(_codec(figures, tier, codec) for tier, codec in sorted(pairs)),
        blending=_blending(figures),
    )


class _Figures:
    def __init__(self, found: Snapshot) -> None:
        self._families = found.families

    def value(self, name: str, **labels: str) -> float | None:
        """The sum over all that is not named; None where there is nothing."""
        family = self._families.get(name)
        asked = set(labels.items())
        values = [sample.value for sample in (family.samples if family else ()) if asked <= set(sample.labels)]
        return sum(values) if values else None

    def count(self, name: str, **labels: str) -> int:
        """Of what is counted from 0 on."""
        return int(self.value(name, **labels) or 0)

    def whole(self, name: str, **labels: str) -> int | None:
        value = self.value(name, **labels)
        return None if value is None else int(value)

    def labels(self, name: str, label: str) -> list[str]:
        family = self._families.get(name)
        found = (dict(sample.labels) for sample in (family.samples if family else ()))
        return list(dict.fromkeys(labels[label] for labels in found if label in labels))

    def reasons(self, name: str, **labels: str) -> dict[str, int]:
        """By the label `reason`, over all that is not named: what occurred."""
        return {
            reason: number
            for reason in self.labels(name, "reason")
            if (number := self.count(name, reason=reason, **labels))
        }

    def pairs(self, name: str) -> set[tuple[str, str]]:
        family = self._families.get(name)
        found = (dict(sample.labels) for sample in (family.samples if family else ()))
        return {(labels["tier"], labels["codec"]) for labels in found}


def _tier(figures: _Figures, tier: str) -> TierUse:
    def count(name: str) -> int:
        return figures.count(f"netgain_kv_tier_{name}_total", tier=tier)

    def reasons(name: str) -> dict[str, int]:
        return figures.reasons(f"netgain_kv_tier_{name}_total", tier=tier)

    hits, misses = count("hits"), count("misses")
    broken = figures.value("netgain_kv_tier_broken", tier=tier)
    return TierUse(
        hits=hits,
        misses=misses,
        refused=count("refused"),
        unread=count("unread"),
        unwritten=count("unwritten"),
        refused_by=reasons("refused"),
        unread_by=reasons("unread"),
        unwritten_by=reasons("unwritten"),
        not_admitted=count("not_admitted"),
        demoted=count("demoted"),
        loaded_bytes=count("loaded_bytes"),
        stored_bytes=count("stored_bytes"),
        hit_rate=hits / (hits + misses) if hits + misses else None,
        load_bytes_per_s=figures.value("netgain_kv_tier_load_bytes_per_second", tier=tier),
        held_bytes=figures.whole("netgain_kv_tier_bytes", tier=tier),
        capacity_bytes=figures.whole("netgain_kv_tier_capacity_bytes", tier=tier),
        evictions=count("evictions"),
        notices=figures.whole("netgain_kv_tier_notices", tier=tier),
        broken=None if broken is None else broken > 0,
    )


def _codec(figures: _Figures, tier: str, codec: str) -> CodecUse:
    def value(name: str) -> float | None:
        return figures.value(f"netgain_kv_codec_{name}", tier=tier, codec=codec)

    raw, coded = value("raw_bytes_total"), value("coded_bytes_total")
    return CodecUse(
        tier=tier,
        codec=codec,
        stored=int(value("stored_total") or 0),
        ratio=raw / coded if raw and coded else None,
        encode_s=value("encode_seconds_total"),
        decode_s=value("decode_seconds_total"),
        break_even_bytes_per_s=value("break_even_bytes_per_second"),
    )


def _blending(figures: _Figures) -> Blending | None:
    if figures.value("netgain_blend_requests_total") is None:
        return None

    def count(name: str) -> int:
        return figures.count(f"netgain_blend_{name}_total")

    def seconds(name: str) -> float:
        return figures.value(f"netgain_blend_{name}_seconds_total") or 0.0

    found, missed, tokens, anew = map(count, ("chunks_found", "chunks_missed", "chunk_tokens", "recomputed_tokens"))
    return Blending(
        requests=count("requests"),
        exact_requests=count("exact_requests"),
        chunks_found=found,
        chunks_missed=missed,
        chunks_fetched=count("chunks_fetched"),
        chunks_left=count("chunks_left"),
        found_rate=found / (found + missed) if found + missed else None,
        chunk_tokens=tokens,
        reused_tokens=tokens - anew,
        recomputed_tokens=anew,
        recomputed_ratio=anew / tokens if tokens else None,
        alone_tokens=count("alone_tokens"),
        rotation_s=seconds("rotation"),
        alone_s=seconds("alone"),
        join_s=seconds("join"),
        memory_bytes=figures.whole("netgain_blend_memory_bytes"),
    )


def show_server(use: ServerUse, console: Console) -> None:
    if not use.tiers and use.blending is None:
        console.print(f"{use.location}: neither KV tiers nor joined chunks there", markup=False)
        return
    if use.tiers:
        console.print(
            f"{use.location}: {use.lookup_hits:,} of {use.lookups:,} lookups found something, "
            f"{_share(use.found_tokens, use.lookup_tokens)} of {use.lookup_tokens:,} tokens; {use.loaded_tokens:,} loaded, "
            f"{use.wasted_tokens:,} ({write_size(use.wasted_bytes)}) came and were not used; "
            f"computing was sooner {use.recompute_chosen:,} times",
            markup=False,
        )
        _show_tiers(use, console)
    if use.blending is not None:
        _show_blending(use.location, use.blending, console)


def _show_tiers(use: ServerUse, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("tier", "hits", "of asked", "refused", "not read", "not stored", "loaded", "stored", "holds", "per s"):
        table.add_column(name, justify="left" if name == "tier" else "right")
    for name, one in use.tiers.items():
        table.add_row(
            f"{name} (left alone)" if one.broken else name,
            f"{one.hits:,}",
            "-" if one.hit_rate is None else f"{one.hit_rate:.1%}",
            f"{one.refused:,}",
            f"{one.unread:,}",
            f"{one.unwritten:,}",
            write_size(one.loaded_bytes),
            write_size(one.stored_bytes),
            _held(one),
            "unknown" if one.load_bytes_per_s is None else write_size(one.load_bytes_per_s),
        )
    console.print(table)
    for name, one in use.tiers.items():
        for what, by in (("refused", one.refused_by), ("not read", one.unread_by), ("not stored", one.unwritten_by)):
            if by:
                told = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in sorted(by.items()))
                console.print(f"{name}: {what}: {told}", markup=False)
        if one.notices:
            console.print(
                f"{name}: its server's own limit of memory works against keeping KV there: the server's log and netgain cache "
                "stats of its address say how to mend that",
                markup=False,
            )
        if one.not_admitted or one.demoted:
            console.print(
                f"{name}: {one.not_admitted:,} blocks not admitted, {one.demoted:,} objects handed down", markup=False
            )
    if any(one.codec != "raw" for one in use.codecs):
        forms = Table(box=None, pad_edge=False)
        for name in ("tier", "form", "objects", "smaller", "encoding", "decoding", "raw is sooner above"):
            forms.add_column(name, justify="left" if name in ("tier", "form") else "right")
        for form in use.codecs:
            limit = form.break_even_bytes_per_s
            forms.add_row(
                form.tier,
                form.codec,
                f"{form.stored:,}",
                "" if form.ratio is None else f"{form.ratio:.2f} x",
                "" if form.encode_s is None else write_time(form.encode_s),
                "" if form.decode_s is None else write_time(form.decode_s),
                "" if limit is None else f"{write_size(limit)}/s",
            )
        console.print(forms)


def _show_blending(location: str, one: Blending, console: Console) -> None:
    console.print(
        f"{location}: {one.requests:,} prompts with chunks, {one.exact_requests:,} of them computed whole; "
        f"chunks: {one.chunks_found:,} found, {one.chunks_missed:,} computed by themselves, "
        f"{one.chunks_fetched:,} fetched from tiers ({one.chunks_left:,} sooner computed)",
        markup=False,
    )
    console.print(
        f"of {one.chunk_tokens:,} tokens in chunks {one.reused_tokens:,} reused, {one.recomputed_tokens:,} computed anew "
        f"({_share(one.recomputed_tokens, one.chunk_tokens)}); moving them {write_time(one.rotation_s)}, chunks by themselves "
        f"{write_time(one.alone_s)} ({write_number(one.alone_tokens)} tokens), the rest {write_time(one.join_s)}"
        + ("" if one.memory_bytes is None else f"; {write_size(one.memory_bytes)} in memory"),
        markup=False,
    )


def _held(one: TierUse) -> str:
    held = "unknown" if one.held_bytes is None else write_size(one.held_bytes)
    return held if one.capacity_bytes is None else f"{held} of {write_size(one.capacity_bytes)}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "none"

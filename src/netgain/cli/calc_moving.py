"""Questions about KV: what it weighs, and whether moving it beats computing it again."""

import math
from typing import Annotated

import typer

from netgain.cli.calc_show import NONE, AsJson, Bandwidth, Line, answer
from netgain.cost import kv
from netgain.cost.quantity import Quantity, amount, duration, frequency, size, write_size, write_time
from netgain.errors import UsageError

_ROOM = 0.8  # of the effective bandwidth; queues, other traffic and the protocol need the rest
_WARM = "T_warm = lookup + queue + transfer + deserialise + suffix prefill, against a full prefill"


def kv_size(
    layers: Annotated[int, typer.Option(min=1, help="Layers with attention.")],
    kv_heads: Annotated[int, typer.Option(min=1, help="KV heads per layer.")],
    head_dim: Annotated[int, typer.Option(min=1, help="Values per head.")],
    dtype: Annotated[str, typer.Option(help=f"{', '.join(kv.DTYPE_BYTES)}.")] = "bf16",
    tokens: Annotated[Quantity | None, typer.Option(parser=amount, help="Tokens to keep.")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    memory: Annotated[Quantity | None, typer.Option(parser=size, help="Room for KV on each device.")] = None,
    json: AsJson = False,
) -> None:
    """Bytes of KV per token and device, of so many tokens, and how many tokens fit."""
    if dtype not in kv.DTYPE_BYTES:
        raise UsageError(f"the dtype {dtype!r} is unknown; use one of {', '.join(kv.DTYPE_BYTES)}")
    width = kv.DTYPE_BYTES[dtype]
    per_token = kv.token_bytes(layers, kv_heads, head_dim, width, ranks)
    heads = max(1.0, kv_heads / ranks)
    lines = [
        Line(
            name="KV per token" + (" and device" if ranks > 1 else ""),
            value=per_token,
            unit="bytes",
            formula="2 (K and V) x layers x heads on the device x head dimension x bytes per value",
            numbers=f"2 x {layers} x {heads:g} x {head_dim} x {width:g} B = {per_token:,.0f} B",
        )
    ]
    if tokens is not None:
        whole = tokens.value * per_token
        lines.append(
            Line(
                name=f"KV of {tokens} tokens",
                value=whole,
                unit="bytes",
                formula="tokens x bytes per token",
                numbers=f"{tokens} x {per_token:,.0f} B",
            )
        )
    if memory is not None:
        lines.append(
            Line(
                name="tokens that fit",
                value=math.floor(memory.value / per_token),
                unit="tokens",
                formula="room / bytes per token",
                numbers=f"{memory} / {per_token:,.0f} B",
            )
        )
    says = []
    if ranks > kv_heads:
        says = [f"{ranks} ranks hold {kv_heads} KV heads, so each head is kept {ranks // kv_heads} times over."]
    answer(lines, "arithmetic of grouped-query attention; heads are replicated as in Megatron-LM and vLLM", says, json)


def handoff(
    kv_bytes: Annotated[Quantity, typer.Option("--kv", parser=size, help="KV of one request.")],
    rate: Annotated[Quantity, typer.Option(parser=frequency, help="Prefills completed, such as 8/s.")],
    link: Bandwidth,
    prefill: Annotated[Quantity | None, typer.Option(parser=duration, help="Time of one prefill.")] = None,
    chunks: Annotated[int, typer.Option(min=1, help="Parts sent as prefill completes them (layers, say).")] = 1,
    json: AsJson = False,
) -> None:
    """KV bytes per second from prefill to decode devices, and how full that makes the link."""
    demand = kv.handoff_bandwidth(kv_bytes.value, rate.value)
    used = demand / link.value if link.value else math.inf
    moving_s = kv.transfer_s(kv_bytes.value, link.value)
    lines = [
        Line(
            name="KV handoff",
            value=demand,
            unit="bytes/s",
            formula="KV bytes per request x prefill completions per second",
            numbers=f"{kv_bytes} x {rate}",
        ),
        Line(
            name="share of the link",
            value=used,
            unit="share",
            formula="handoff / effective bandwidth",
            numbers=f"{write_size(demand, True)} / {link}",
        ),
        Line(
            name="transfer of one request",
            value=moving_s,
            unit="s",
            formula="KV bytes / effective bandwidth",
            numbers=f"{kv_bytes} / {link}",
        ),
    ]
    if prefill is not None:
        lines.append(
            Line(
                name="of it not hidden behind prefill",
                value=kv.exposed_s(moving_s, prefill.value, chunks),
                unit="s",
                formula="max(transfer - prefill x (c - 1) / c, transfer / c) for c chunks",
                numbers=f"max({write_time(moving_s)} - {prefill} x {chunks - 1}/{chunks}, {write_time(moving_s)} / {chunks})",
            )
        )
    says = ["Queues, other traffic and the protocol come on top; watch p95 and p99 of transfers, not the mean."]
    if used > 1.0:
        says.insert(0, "The link cannot carry this: transfers queue without end.")
    elif used >= _ROOM - 1e-9:
        says.insert(0, f"Too little room: {used:.0%} of the link is taken before queues, other traffic and protocol.")
    answer(lines, "arithmetic of mean demand; the setting is that of DistServe, OSDI 2024", says, json)


def warm(
    kv_bytes: Annotated[Quantity, typer.Option("--kv", parser=size, help="KV to load.")],
    link: Bandwidth,
    full: Annotated[Quantity, typer.Option(parser=duration, help="Time of the full prefill, which a hit saves.")],
    lookup: Annotated[Quantity, typer.Option(parser=duration, help="Finding it.")] = NONE,
    queue: Annotated[Quantity, typer.Option(parser=duration, help="Waiting for the tier.")] = NONE,
    deserialise: Annotated[Quantity, typer.Option(parser=duration, help="Decoding what was loaded.")] = NONE,
    suffix: Annotated[Quantity, typer.Option(parser=duration, help="Prefill of what the cache lacks.")] = NONE,
    json: AsJson = False,
) -> None:
    """Load a cached prefix or compute it again: T_warm against T_full, and the bandwidth at which they are equal."""
    moving_s = kv.transfer_s(kv_bytes.value, link.value)
    others = lookup.value + queue.value + deserialise.value + suffix.value
    warm_s = kv.warm_s(lookup.value, queue.value, moving_s, deserialise.value, suffix.value)
    lines = [
        Line(
            name="T_warm",
            value=warm_s,
            unit="s",
            formula="lookup + queue + KV bytes / bandwidth + deserialise + suffix prefill",
            numbers=f"{lookup} + {queue} + {kv_bytes} / {link} + {deserialise} + {suffix}",
        ),
        Line(
            name="saved by a hit",
            value=full.value - warm_s,
            unit="s",
            formula="T_full - T_warm",
            numbers=f"{full} - {write_time(warm_s)}",
        ),
        Line(
            name="bandwidth at which both are equal",
            value=kv.break_even_bandwidth(kv_bytes.value, full.value, others),
            unit="bytes/s",
            formula="KV bytes / (T_full - everything but the transfer)",
            numbers=f"{kv_bytes} / ({full} - {write_time(others)})",
        ),
    ]
    if warm_s < full.value:
        told = "Reuse may pay: this is the best case, and a miss costs its lookup and store on top of the full prefill."
    else:
        told = "Recompute: loading takes no less than computing."
    answer(lines, _WARM, [told], json)


def compress(
    kv_bytes: Annotated[Quantity, typer.Option("--kv", parser=size, help="KV before compression.")],
    link: Bandwidth,
    ratio: Annotated[float, typer.Option(min=0.001, help="Bytes before over bytes after: 4 is a quarter.")],
    encode: Annotated[Quantity, typer.Option(parser=duration, help="Compressing.")] = NONE,
    decode: Annotated[Quantity, typer.Option(parser=duration, help="Decompressing.")] = NONE,
    json: AsJson = False,
) -> None:
    """Compress KV before moving it, or not: T = encode + compressed bytes / bandwidth + decode."""
    raw_s = kv.transfer_s(kv_bytes.value, link.value)
    short_s = kv.compressed_s(kv_bytes.value, ratio, link.value, encode.value, decode.value)
    lines = [
        Line(
            name="compressed transfer",
            value=short_s,
            unit="s",
            formula="encode + bytes / ratio / bandwidth + decode",
            numbers=f"{encode} + {kv_bytes} / {ratio:g} / {link} + {decode}",
        ),
        Line(name="raw transfer", value=raw_s, unit="s", formula="bytes / bandwidth", numbers=f"{kv_bytes} / {link}"),
    ]
    told = "Move it raw: compressing takes longer than it saves."
    if short_s < raw_s:
        told = "Faster compressed; it is lossy unless proven otherwise, so check quality on your model and task."
    answer(lines, "CacheGen, SIGCOMM 2024 (arXiv 2310.07240)", [told], json)


def hits(
    requests: Annotated[Quantity, typer.Option(parser=amount, help="Requests in all.")],
    hit: Annotated[
        list[str], typer.Option(metavar="NxTOKENS", help="N requests found TOKENS tokens, as in 90x16; repeatable.")
    ],
    json: AsJson = False,
) -> None:
    """Prefill tokens that cache hits save. A hit rate in requests does not tell."""
    pairs: list[tuple[float, float]] = []
    for text in hit:
        number, cross, tokens = text.partition("x")
        if not cross:
            raise UsageError(f"{text!r} is no hit; write it as REQUESTSxTOKENS, as in 90x16")
        pairs.append((amount(number).value, amount(tokens).value))
    hitting = sum(number for number, _ in pairs)
    if hitting > requests.value:
        raise UsageError(f"{hitting:g} requests hit, of {requests}; give at least as many requests as hits")
    lines = [
        Line(
            name="prefill saved",
            value=kv.saved_tokens(pairs),
            unit="tokens",
            formula="sum over hits of requests x tokens found",
            numbers=" + ".join(f"{number:g} x {tokens:g}" for number, tokens in pairs),
        ),
        Line(
            name="hit rate in requests",
            value=hitting / requests.value if requests.value else 0.0,
            unit="share",
            formula="requests that hit / requests",
            numbers=f"{hitting:g} / {requests}",
        ),
    ]
    answer(lines, "a hit is not success, a gain is: keep the distribution of hit lengths", (), json)

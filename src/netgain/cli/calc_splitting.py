"""Questions about models split over devices: experts, collectives, pipelines."""

import re
from typing import Annotated

import typer

from netgain.cli.calc_show import NONE, AsJson, Bandwidth, Line, answer
from netgain.cost import collectives
from netgain.cost import experts as moe
from netgain.cost.kv import transfer_s
from netgain.cost.quantity import Quantity, amount, bandwidth, duration, share, size
from netgain.errors import UsageError

_TWO_BYTES = Quantity(2.0, "2B")
_NO_BYTES = Quantity(0.0, "0B")
_ROUTED = re.compile(r"(\d+):(\d+(?:,\d+)*)")
_KINDS: tuple[collectives.Collective, ...] = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "point-to-point",
)


def experts(
    tokens: Annotated[Quantity, typer.Option(parser=amount, help="Tokens per rank in one step.")],
    experts: Annotated[int, typer.Option(min=1, help="Routed experts per layer.")],
    top_k: Annotated[int, typer.Option(min=1, help="Experts per token; belongs to the model.")],
    ranks: Annotated[int, typer.Option(min=1, help="Expert-parallel ranks.")],
    hidden: Annotated[int, typer.Option(min=1, help="Hidden size.")],
    dispatch_value: Annotated[Quantity, typer.Option(parser=size, help="Bytes per value sent out.")] = _TWO_BYTES,
    combine_value: Annotated[Quantity, typer.Option(parser=size, help="Bytes per value brought back.")] = _TWO_BYTES,
    scales: Annotated[Quantity, typer.Option(parser=size, help="Scales per token sent out.")] = _NO_BYTES,
    layers: Annotated[int, typer.Option(min=1, help="Layers with experts.")] = 1,
    link: Annotated[
        Quantity | None, typer.Option("--bandwidth", parser=bandwidth, help="Effective bandwidth of a rank.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Bytes that dispatch and combine move per rank under uniform routing, which real routing is not."""
    distinct = moe.expected_ranks(experts, ranks, top_k)
    out = layers * moe.dispatch_bytes(tokens.value, distinct, hidden, dispatch_value.value, scales.value)
    back = layers * moe.combine_bytes(tokens.value, distinct, hidden, combine_value.value)
    lines = [
        Line(
            name="dispatch and combine",
            value=out + back,
            unit="bytes",
            formula="layers x tokens x ranks per token x (hidden x (dispatch + combine bytes) + scales)",
            numbers=f"{layers} x {tokens} x {distinct:.4g} x ({hidden} x ({dispatch_value} + {combine_value}) + {scales})",
        ),
        Line(name="dispatch", value=out, unit="bytes", formula="its part of it", numbers=""),
        Line(name="combine", value=back, unit="bytes", formula="its part of it", numbers=""),
        Line(
            name="distinct ranks per token",
            value=distinct,
            unit="",
            formula="e (1 - C(E - E/e, k) / C(E, k))",
            numbers=f"{ranks} x (1 - C({experts - experts // ranks}, {top_k}) / C({experts}, {top_k}))",
        ),
        Line(
            name="experts that the step's tokens touch, of all ranks",
            value=moe.touched_experts(experts, top_k, tokens.value * ranks),
            unit="",
            formula="E (1 - (1 - k/E)^tokens)",
            numbers=f"{experts} x (1 - (1 - {top_k}/{experts})^({tokens} x {ranks}))",
        ),
    ]
    if link is not None:
        lines.append(
            Line(
                name="time of it, with nothing hidden",
                value=transfer_s(out + back, link.value),
                unit="s",
                formula="bytes / bandwidth",
                numbers=f"{out + back:,.0f} B / {link}",
            )
        )
    says = [f"The share that stays on its own rank (1/{ranks} under uniform routing) is counted and crosses no link."]
    answer(lines, "DeepEP's accounting: one copy per token and distinct rank", says, json)


def dispatch(
    placement: Annotated[str, typer.Option(help="Experts per device: 0,1/2,3 puts 0 and 1 on device 0.")],
    token: Annotated[
        list[str], typer.Option(metavar="DEVICE:EXPERTS", help="A token and its experts, as in 0:0,2; repeatable.")
    ],
    json: AsJson = False,
) -> None:
    """Which device sends how many pieces to which, for tokens whose experts are known."""
    held = [_numbers(part, placement) for part in placement.split("/")]
    routed = []
    for text in token:
        found = _ROUTED.fullmatch(text)
        if not found:
            raise UsageError(f"{text!r} is no routed token; write it as DEVICE:EXPERT,EXPERT, as in 0:0,2")
        routed.append(moe.Routed(int(found[1]), tuple(_numbers(found[2], text))))
    sent = moe.pieces_sent(routed, held)
    lines = [
        Line(
            name="pieces sent",
            value=sum(map(sum, sent)),
            unit="",
            formula="one per token and distinct other device among those of its experts",
            numbers=" + ".join(
                str(len({moe.device_of(held, expert) for expert in one.experts} - {one.device})) for one in routed
            ),
        )
    ]
    for source, row in enumerate(sent):
        for target, pieces in enumerate(row):
            if pieces:
                name = f"device {source} to device {target}"
                lines.append(Line(name=name, value=pieces, unit="", formula="of them", numbers=""))
    answer(lines, "who sends how much to whom follows the router", (), json)


def balance(
    experts: Annotated[int, typer.Option(min=2, help="Experts, the same number on each rank.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks.")],
    hot_share: Annotated[Quantity, typer.Option(parser=share, help="Share of the traffic that one expert draws.")],
    json: AsJson = False,
) -> None:
    """Even placement is not even load: max over mean when one expert is hot."""
    loads = moe.hot_expert_loads(experts, ranks, hot_share.value)
    held = experts // ranks
    lines = [
        Line(
            name="max / mean load of a rank",
            value=moe.imbalance(loads),
            unit="x",
            formula="share of the hot expert's rank / (1 / ranks)",
            numbers=f"{loads[0]:.4g} / (1/{ranks})",
        ),
        Line(
            name="share of the hot expert's rank",
            value=loads[0],
            unit="share",
            formula="hot + (experts per rank - 1) x (1 - hot) / (experts - 1)",
            numbers=f"{hot_share} + {held - 1} x (1 - {hot_share}) / {experts - 1}",
        ),
    ]
    says = ["That rank is the layer's time: the experts' part of a step takes this many times as long as if even."]
    answer(lines, "straggler bound of expert parallelism", says, json)


def collective(
    ranks: Annotated[int, typer.Option(min=1, help="Ranks in the group.")],
    message: Annotated[Quantity, typer.Option("--size", parser=size, help="Bytes of the message on each rank.")],
    link: Bandwidth,
    kind: Annotated[str, typer.Option(help=f"{', '.join(_KINDS)}.")] = "all-reduce",
    latency: Annotated[Quantity, typer.Option(parser=duration, help="Latency of one hop.")] = NONE,
    json: AsJson = False,
) -> None:
    """Time of one collective by latency and bandwidth (ring)."""
    chosen = next((known for known in _KINDS if known == kind), None)
    if chosen is None:
        raise UsageError(f"the collective {kind!r} is unknown; use one of {', '.join(_KINDS)}")
    factor = collectives.traffic_factor(chosen, ranks)
    hops = 1 if chosen == "point-to-point" else (2 if chosen == "all-reduce" else 1) * (ranks - 1)
    lines = [
        Line(
            name=f"{chosen} of {ranks} ranks",
            value=collectives.collective_s(chosen, ranks, message.value, latency.value, link.value),
            unit="s",
            formula="hops x latency + bytes over the link / bandwidth",
            numbers=f"{hops} x {latency} + {factor:.4g} x {message} / {link}",
        ),
        Line(
            name="bytes over each rank's link",
            value=factor * message.value,
            unit="bytes",
            formula="2 (n - 1) / n x bytes" if chosen == "all-reduce" else "(n - 1) / n x bytes",
            numbers=f"{factor:.4g} x {message}",
        ),
    ]
    answer(lines, "alpha-beta model; factors of NVIDIA nccl-tests, doc/PERFORMANCE.md", (), json)


def bubble(
    stages: Annotated[int, typer.Option(min=1, help="Pipeline stages.")],
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches in flight.")],
    json: AsJson = False,
) -> None:
    """Idle share of a pipeline that fills and drains, with equal stages."""
    lines = [
        Line(
            name="bubble",
            value=collectives.pipeline_bubble(stages, micro_batches),
            unit="share",
            formula="(stages - 1) / (micro-batches + stages - 1)",
            numbers=f"({stages} - 1) / ({micro_batches} + {stages} - 1)",
        )
    ]
    says = ["Online decoding never drains: there the bubble comes from micro-batches of unequal length."]
    answer(lines, "GPipe, arXiv 1811.06965", says, json)


def _numbers(text: str, whole: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{whole!r} names experts that are no numbers; write them as in 0,1/2,3") from None

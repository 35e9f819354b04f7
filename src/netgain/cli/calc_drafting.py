"""Questions about speculative decoding."""

from typing import Annotated

import typer

from netgain.cli.calc_show import AsJson, Line, answer
from netgain.cost.quantity import Quantity, amount, share, shares
from netgain.cost.speculation import best_length, committed_per_step, expected_accepted, rejection_law, speedup
from netgain.errors import UsageError

_ONE = Quantity(1.0, "1")
_LEVIATHAN = "Leviathan et al., Fast Inference from Transformers via Speculative Decoding, ICML 2023"


def accepted(
    alpha: Annotated[
        Quantity | None, typer.Option(parser=share, help="Chance that a draft is accepted, the same at every position.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", min=0, max=1000, help="Drafted tokens per step.")] = None,
    survival: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Instead: measured chance per position, given that all before it were accepted.",
        ),
    ] = None,
    draft_cost: Annotated[
        Quantity | None, typer.Option(parser=amount, help="Cost of drafting one token, in plain decode steps.")
    ] = None,
    verify_cost: Annotated[
        Quantity, typer.Option(parser=amount, help="Cost of the verifying step, in plain decode steps.")
    ] = _ONE,
    json: AsJson = False,
) -> None:
    """Expected accepted drafts and committed tokens per step; with --draft-cost also the speed-up."""
    if (survival is None) == (alpha is None or k is None):
        raise UsageError("give either --alpha and --k, or --survival with one chance per position")
    if survival is not None:
        given = shares(survival)
        chances = [quantity.value for quantity in given]
        formula = "a1 + a1 a2 + ... + a1 a2 ... aK"
        products = [" x ".join(q.text for q in given[: at + 1]) for at in range(len(given))]
        numbers = " + ".join(products)
    else:
        assert alpha is not None
        assert k is not None
        chances = [alpha.value] * k
        formula = "a + a^2 + ... + a^K"
        numbers = " + ".join(alpha.text if n == 1 else f"{alpha.text}^{n}" for n in range(1, min(k, 8) + 1)) or "0"
        numbers += f" + ... + {alpha.text}^{k}" if k > 8 else ""
    mean = expected_accepted(chances)
    lines = [
        Line(name="accepted drafts per step", value=mean, unit="tokens", formula=formula, numbers=numbers),
        Line(
            name="committed per step",
            value=committed_per_step(chances),
            unit="tokens",
            formula="accepted + 1, which the target itself adds",
            numbers=f"{mean:.5g} + 1",
        ),
    ]
    says = ["Equal, independent chances are a toy: real ones fall with the position, so measure them (--survival)."]
    if survival is not None:
        says = []
    if draft_cost is not None:
        gain = speedup(chances, draft_cost.value, verify_cost.value)
        lines.append(
            Line(
                name="speed-up of decoding",
                value=gain,
                unit="x",
                formula="committed / (verify cost + K x draft cost)",
                numbers=f"{mean + 1:.5g} / ({verify_cost} + {len(chances)} x {draft_cost})",
            )
        )
        if gain < 1.0:
            says.append("Below 1x: drafting costs more than it brings here; K = 0 is a valid answer.")
        if alpha is not None and verify_cost.value == 1.0:
            best = best_length(alpha.value, draft_cost.value)
            says.append(f"With these chances and costs the best K is {best}{' (no drafts)' if best == 0 else ''}.")
    answer(lines, _LEVIATHAN, says, json)


def rejection(
    draft: Annotated[str, typer.Option(metavar="Q1,Q2,...", help="The draft's probability of each token.")],
    target: Annotated[str, typer.Option(metavar="P1,P2,...", help="The target's probability of each token.")],
    json: AsJson = False,
) -> None:
    """What rejection sampling does to each token's probability: it comes out as the target's."""
    q, p = shares(draft), shares(target)
    kept, again, both = rejection_law([one.value for one in q], [one.value for one in p])
    chance = sum(kept)
    lines = [
        Line(
            name="chance that a draft is accepted",
            value=chance,
            unit="share",
            formula="sum over tokens of min(p, q)",
            numbers=" + ".join(f"min({b.text}, {a.text})" for a, b in zip(q, p, strict=True)),
        )
    ]
    for place, whole in enumerate(both):
        lines.append(
            Line(
                name=f"token {place} comes out with",
                value=whole,
                unit="share",
                formula="accepted min(p, q) + rejected x max(0, p - q) / sum of it",
                numbers=f"{kept[place]:.4g} + {again[place]:.4g}",
            )
        )
    answer(lines, _LEVIATHAN, (), json)

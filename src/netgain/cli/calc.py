"""`netgain calc`: the formulas behind the techniques, with your numbers, without a model and without a server."""

import typer

from netgain.cli import calc_drafting, calc_knowing, calc_moving, calc_splitting

app = typer.Typer(
    help="Work out what a technique should cost or bring: formulas with your numbers put in, no model, no server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("accepted")(calc_drafting.accepted)
app.command("rejection")(calc_drafting.rejection)
app.command("kv-size")(calc_moving.kv_size)
app.command("handoff")(calc_moving.handoff)
app.command("warm")(calc_moving.warm)
app.command("compress")(calc_moving.compress)
app.command("hits")(calc_moving.hits)
app.command("rag-cag-price")(calc_knowing.price)
app.command("rag-cag-time")(calc_knowing.time)
app.command("experts")(calc_splitting.experts)
app.command("dispatch")(calc_splitting.dispatch)
app.command("balance")(calc_splitting.balance)
app.command("collective")(calc_splitting.collective)
app.command("bubble")(calc_splitting.bubble)

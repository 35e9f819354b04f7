"""`netgain keys`: make, list and revoke the API keys that `netgain serve --api-keys FILE` asks for."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from netgain.serving.api.keys import KeyLimits, default_file, new_key, read_keys, revoke_key

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")

_FILE = typer.Option(help="The key file; by default keys.json in the user's configuration folder.")


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="Whose key it is; keys of one tenant share cached prefixes.")],
    file: Annotated[Path | None, _FILE] = None,
    max_in_flight: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Prompt and answer tokens together.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of one answer.")] = None,
    priority_floor: Annotated[
        int, typer.Option(help="The most urgent priority that a request may ask for; lower is more urgent.")
    ] = 0,
    operator: Annotated[
        bool, typer.Option("--operator", help="May also read protected metrics and measure the step cost.")
    ] = False,
) -> None:
    """Make a key and print it: the file holds only its hash, so it cannot be shown again."""
    path = file or default_file()
    limits = KeyLimits(
        max_in_flight=max_in_flight,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        max_tokens=max_tokens,
        priority_floor=priority_floor,
    )
    key = new_key(path, tenant, limits, operator)
    print(f"netgain: added to {path}; this is the only time that the key is shown:", file=sys.stderr)
    print(key)


@app.command()
def ls(file: Annotated[Path | None, _FILE] = None) -> None:
    """List the keys: id, tenant, when made, limits. Never a key itself."""
    entries = read_keys(file or default_file())
    rows = [("id", "tenant", "created", "state", "operator", "limits")]
    for entry in entries:
        state = f"revoked {entry.revoked}" if entry.revoked else "active"
        operator = "yes" if entry.operator else "no"
        rows.append((entry.id, entry.tenant, entry.created, state, operator, _limits(entry.limits)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `netgain keys ls` shows it.", metavar="ID")],
    file: Annotated[Path | None, _FILE] = None,
) -> None:
    """Revoke a key; a running server refuses it within two seconds, and lets its running requests finish."""
    entry = revoke_key(file or default_file(), key_id)
    print(f"{entry.id} of {entry.tenant} is revoked")


def _limits(limits: KeyLimits) -> str:
    told = [
        f"{name.replace('_', ' ')} {value}"
        for name in KeyLimits.__struct_fields__
        if (value := getattr(limits, name)) is not None and (name != "priority_floor" or value)
    ]
    return ", ".join(told) or "none"

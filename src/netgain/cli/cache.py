"""`netgain cache`: what KV tiers hold, whether it is whole, and making them forget."""

import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console

from netgain.cli.cache_blend import blend
from netgain.cli.cache_codecs import codecs
from netgain.cli.cache_curve import curve
from netgain.cli.cache_experiment import experiment
from netgain.cli.cache_places import AsJson, Keys, Locations, VaultOption, print_json, visit
from netgain.cli.cache_purge import purge
from netgain.cli.cache_server import is_server, read_server, show_server
from netgain.cli.cache_show import (
    Content,
    Verified,
    content_of,
    row_of,
    show_content,
    show_rows,
    show_verified,
)
from netgain.serving.tiers.inventory import Found, Silent, verify, walk
from netgain.serving.tiers.locations import is_folder, without_password
from netgain.serving.tiers.object import Reason
from netgain.serving.tiers.tending import notices
from netgain.serving.tiers.tier import Tier

app = typer.Typer(no_args_is_help=True, help="Look into KV tiers, verify or purge them.")
app.command()(curve)
app.command()(codecs)
app.command()(blend)
app.command()(experiment)
app.command()(purge)

FAILED = 1


@app.command()
def stats(locations: Locations, vault: VaultOption = None, json: AsJson = False) -> None:
    """Count what is there, by tenant, codec, plane and layout, from the headers alone; of a running server (http://HOST:PORT)
    what it did so far."""
    keys = Keys(vault)

    async def look(location: str, tier: Tier) -> Content:
        found = [(one, keys.owner(one)) async for one in walk(tier)]
        foreign = tier.stats().usage.foreign if is_folder(location) else None
        content = content_of(without_password(location), found, foreign)
        content.notices = await notices(tier)
        return content

    contents = [read_server(location) if is_server(location) else visit(location, look) for location in locations]
    if json:
        print_json(contents)
        return
    for content in contents:
        if isinstance(content, Content):
            show_content(content, time.time(), Console(soft_wrap=True))
        else:
            show_server(content, Console(soft_wrap=True))


@app.command()
def ls(
    location: Annotated[str, typer.Argument(help="As for stats.", show_default=False)],
    vault: VaultOption = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, the newest first; 0: all.")] = 50,
    json: AsJson = False,
) -> None:
    """List the objects: address, tenant, layers, codec, bytes, age. Never what is in them."""
    keys = Keys(vault)

    async def look(location: str, tier: Tier) -> list[tuple[Found, str]]:
        return [(one, keys.owner(one)) async for one in walk(tier)]

    found = [row for one, owner in visit(location, look) if (row := row_of(one, owner)) is not None]
    rows = sorted(
        (row for row in found if tenant is None or row.tenant == tenant),
        key=lambda row: (-(row.written_s or 0), row.address),
    )
    shown = rows[:limit] if limit else rows
    if json:
        print_json(shown)
    else:
        show_rows(shown, len(rows) - len(shown), time.time(), Console(soft_wrap=True))


@app.command("verify")
def verify_(
    locations: Locations,
    vault: VaultOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is refused.")] = False,
    json: AsJson = False,
) -> int:
    """Read every object and check it, with --vault also its seal. Exits with 1 when something is refused and stays."""
    keys = Keys(vault)
    check = keys.checks()

    async def look(location: str, tier: Tier) -> Verified:
        whole = size = unopened = 0
        refused: dict[bytes, Reason] = {}
        async for one in verify(tier, check):
            if one.head is None:
                refused[one.address] = one.refused or Reason.DAMAGED
                continue
            whole += 1
            size += one.head.bytes
            unopened += one.head.stored.seal is not None and vault is None
        removed = None
        if remove:
            removed = await tier.delete(list(refused))
            if removed is None:
                raise Silent("what is refused could not be removed")
        return Verified(
            location=without_password(location),
            objects=whole,
            bytes=size,
            unopened=unopened,
            refused=dict(Counter(refused.values())),
            removed=removed,
        )

    found = [visit(location, look) for location in locations]
    if json:
        print_json(found)
    else:
        for verified in found:
            show_verified(verified, Console(soft_wrap=True))
    return FAILED if any(verified.refused and verified.removed is None for verified in found) else 0

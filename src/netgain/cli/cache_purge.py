"""`netgain cache purge`: making tiers forget, those of running servers among them."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from netgain.cli.cache_places import AsJson, Keys, VaultOption, check_place, print_json, visit
from netgain.cli.cache_server import is_server
from netgain.cli.cache_server_purge import purge_server, show_server_purged
from netgain.cli.cache_show import SEALED, Purged, show_purged
from netgain.cost.quantity import Quantity, duration
from netgain.errors import Unavailable, UsageError
from netgain.serving.tiers.inventory import Found, sweep
from netgain.serving.tiers.locations import without_password
from netgain.serving.tiers.tier import Tier
from netgain.serving.tiers.vault_file import DestroyedKey, destroy_keys
from netgain.wording import count

FAILED = 1


def purge(
    locations: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LOCATION...]", help="As for stats, http://HOST:PORT too.", show_default=False),
    ] = None,
    vault: VaultOption = None,
    tenant: Annotated[
        str | None, typer.Option(help="Destroy this tenant's key and remove what is the tenant's.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Destroy all keys and remove everything.")] = False,
    older_than: Annotated[
        Quantity | None,
        typer.Option(
            parser=duration, help="Remove what was written longer ago, or without a date.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
) -> int:
    """Make tiers forget. Keys are destroyed first, so that what lies in a place that cannot be reached is unreadable at once;
    the same command again removes it later."""
    places = locations or []
    if sum((tenant is not None, everything, older_than is not None)) != 1:
        raise UsageError("say what to purge: one of --tenant NAME, --all or --older-than TIME")
    if not places and (vault is None or older_than is not None):
        raise UsageError(
            "name at least one location, such as a folder, shm:NAME, valkey://HOST:PORT/DB, s3://BUCKET or http://HOST:PORT"
        )
    if older_than is not None and vault is not None:
        raise UsageError("--older-than goes by dates alone: leave --vault out; no key is destroyed for age")
    if older_than is not None and any(map(is_server, places)):
        raise UsageError("a running server forgets a tenant (--tenant) or all; for age set its engine.kv.retention_s")
    keys = Keys(vault)
    for place in places:
        check_place(place)
    what = f"everything of the tenant {tenant!r}" if tenant is not None else "everything"
    if older_than is not None:
        what += f" older than {older_than}"
    _confirm(f"Remove {what} from {', '.join(map(without_password, places)) or 'no location'}", vault, yes)
    destroyed: tuple[DestroyedKey, ...] = ()
    if vault is not None:
        destroyed = destroy_keys(vault, None if tenant is None else frozenset({tenant}), int(time.time()))
        keys = Keys(vault)
    condemned = _condemned(keys, tenant, older_than)
    purged = [
        purge_server(place, tenant) if is_server(place) else _purge(place, keys, condemned)
        for place in sorted(places, key=is_server, reverse=True)  # they would go on storing what they have in memory
    ]
    if json:
        print_json({"destroyed_keys": len(destroyed), "locations": purged})
    else:
        console = Console(soft_wrap=True)
        if vault is not None:
            console.print(f"{count(len(destroyed), 'key')} destroyed in {vault}", markup=False)
        for one in purged:
            if isinstance(one, Purged):
                show_purged(one, console)
            else:
                show_server_purged(one, console)
    if any(one.failed for one in purged):
        end = "; what it holds of destroyed keys is unreadable" if vault is not None else ""
        print(f"netgain: not everything was removed{end}; run the same again when it answers", file=sys.stderr)
        return FAILED
    unknown = sum(one.unknown for one in purged if isinstance(one, Purged)) if tenant is not None else 0
    if unknown:
        print(
            f"netgain: perhaps not everything was removed: it is not known whose {count(unknown, 'sealed object')} are: give "
            "their vault with --vault",
            file=sys.stderr,
        )
        return FAILED
    return 0


def _condemned(keys: Keys, tenant: str | None, older_than: Quantity | None) -> Callable[[Found], bool]:
    if tenant is not None:
        return lambda found: keys.owner(found) == tenant
    if older_than is None:
        return lambda found: True
    before_s = time.time() - older_than.value
    return lambda found: found.head is not None and (found.head.stored.written_s or 0) < before_s


def _purge(place: str, keys: Keys, condemned: Callable[[Found], bool]) -> Purged:
    async def look(location: str, tier: Tier) -> Purged:
        unknown = 0

        def judge(found: Found) -> bool:
            nonlocal unknown
            judged = condemned(found)
            unknown += not judged and found.head is not None and keys.owner(found) == SEALED
            return judged

        swept = await sweep(tier, judge)
        return Purged(
            location=without_password(location),
            looked_at=swept.looked_at,
            removed=swept.removed,
            bytes=swept.bytes,
            unknown=unknown,
        )

    try:
        return visit(place, look)
    except (Unavailable, UsageError) as error:
        shown = without_password(place)
        return Purged(location=shown, failed=str(error).removeprefix(shown).lstrip(": "))


def _confirm(what: str, vault: Path | None, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what}? There is no terminal to ask at: add --yes")
    end = f", and destroy the keys in {vault} for good" if vault is not None else ""
    typer.confirm(f"{what}{end}?", abort=True)

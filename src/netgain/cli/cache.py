"""`netgain cache`: what KV tiers hold, whether it is whole, and making them forget."""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console

from netgain.cli.cache_blend import blend
from netgain.cli.cache_codecs import codecs
from netgain.cli.cache_curve import curve
from netgain.cli.cache_experiment import experiment
from netgain.cli.cache_server import is_server, read_server, show_server
from netgain.cli.cache_show import (
    ANONYMOUS,
    SEALED,
    Content,
    Purged,
    Verified,
    content_of,
    row_of,
    show_content,
    show_purged,
    show_rows,
    show_verified,
)
from netgain.cost.quantity import Quantity, duration
from netgain.errors import Unavailable, UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.inventory import Found, Silent, sweep, verify, walk
from netgain.serving.tiers.locations import is_folder, open_location, without_password
from netgain.serving.tiers.medium import Fault
from netgain.serving.tiers.object import Reason, StoredObject
from netgain.serving.tiers.tier import Tier, TierOptions
from netgain.serving.tiers.vault_file import DestroyedKey, VaultFile, destroy_keys, read_vault

app = typer.Typer(no_args_is_help=True, help="Look into KV tiers, verify or purge them.")
app.command()(curve)
app.command()(codecs)
app.command()(blend)
app.command()(experiment)

FAILED = 1
_PATIENCE_S = 60.0  # for one exchange: nobody's request waits for it
_HELLO_S = 10.0  # for the first
_GROUP = 64

T = TypeVar("T")

Locations = Annotated[
    list[str],
    typer.Argument(
        metavar="LOCATION...", help="A folder, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX.", show_default=False
    ),
]
VaultOption = Annotated[
    Path | None, typer.Option("--vault", help="The vault whose keys seal the objects.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command()
def stats(locations: Locations, vault: VaultOption = None, json: AsJson = False) -> None:
    """Count what is there, by tenant, codec, plane and layout, from the headers alone; of a running server (http://HOST:PORT)
    what it did so far."""
    keys = _Keys(vault)

    async def look(location: str, tier: Tier) -> Content:
        found = [(one, keys.owner(one)) async for one in walk(tier)]
        return content_of(
            without_password(location), found, tier.stats().usage.foreign if is_folder(location) else None
        )

    contents = [read_server(location) if is_server(location) else _at(location, look) for location in locations]
    if json:
        _print_json(contents)
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
    keys = _Keys(vault)

    async def look(location: str, tier: Tier) -> list[tuple[Found, str]]:
        return [(one, keys.owner(one)) async for one in walk(tier)]

    found = [row for one, owner in _at(location, look) if (row := row_of(one, owner)) is not None]
    rows = sorted(
        (row for row in found if tenant is None or row.tenant == tenant),
        key=lambda row: (-(row.written_s or 0), row.address),
    )
    shown = rows[:limit] if limit else rows
    if json:
        _print_json(shown)
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
    keys = _Keys(vault)
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

    found = [_at(location, look) for location in locations]
    if json:
        _print_json(found)
    else:
        for verified in found:
            show_verified(verified, Console(soft_wrap=True))
    return FAILED if any(verified.refused and verified.removed is None for verified in found) else 0


@app.command()
def purge(
    locations: Annotated[
        list[str] | None, typer.Argument(metavar="[LOCATION...]", help="As for stats.", show_default=False)
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
        raise UsageError("name at least one location, such as a folder, valkey://HOST:PORT/DB or s3://BUCKET")
    if older_than is not None and vault is not None:
        raise UsageError("--older-than goes by dates alone: leave --vault out; no key is destroyed for age")
    keys = _Keys(vault)
    for place in places:
        _check_place(place)
    what = f"everything of the tenant {tenant!r}" if tenant is not None else "everything"
    if older_than is not None:
        what += f" older than {older_than}"
    _confirm(f"Remove {what} from {', '.join(map(without_password, places)) or 'no location'}", vault, yes)
    destroyed: tuple[DestroyedKey, ...] = ()
    if vault is not None:
        destroyed = destroy_keys(vault, None if tenant is None else frozenset({tenant}), int(time.time()))
        keys = _Keys(vault)
    purged = [_purge(place, keys, _condemned(keys, tenant, older_than)) for place in places]
    if json:
        _print_json({"destroyed_keys": len(destroyed), "locations": purged})
    else:
        console = Console(soft_wrap=True)
        if vault is not None:
            console.print(f"{len(destroyed)} keys destroyed in {vault}", markup=False)
        for one in purged:
            show_purged(one, console)
    if any(one.failed for one in purged):
        end = "; what it holds of destroyed keys is unreadable" if vault is not None else ""
        print(f"netgain: not everything was removed{end}; run the same again when it answers", file=sys.stderr)
        return FAILED
    return 0


class _Keys:
    """Whose objects are, as far as a vault (None: none was given) can tell."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        vault = VaultFile() if path is None else read_vault(path)
        self._owners = {bytes.fromhex(key.key_id): key.tenant for key in vault.destroyed}
        self._owners |= {bytes.fromhex(key.key_id): key.tenant for key in vault.keys}

    def owner(self, found: Found) -> str:
        """The tenant as it is shown."""
        if found.head is None:
            return SEALED
        stored = found.head.stored
        if stored.seal is None:
            return stored.tenant or ANONYMOUS
        if stored.seal.key_id not in self._owners:
            return SEALED
        return self._owners[stored.seal.key_id] or ANONYMOUS

    def checks(self) -> Callable[[StoredObject], None]:
        """What else to check of an object that is whole: its seal, where there is a vault."""
        if self._path is None:
            return lambda stored: None
        from netgain.serving.tiers.vault import Vault  # needs an extra

        vault = Vault(self._path)

        def opens(stored: StoredObject) -> None:
            if stored.seal is not None:
                vault.open(stored, vault.tenant_of(stored.seal))

        return opens


def _condemned(keys: _Keys, tenant: str | None, older_than: Quantity | None) -> Callable[[Found], bool]:
    if tenant is not None:
        return lambda found: keys.owner(found) == tenant
    if older_than is None:
        return lambda found: True
    before_s = time.time() - older_than.value
    return lambda found: found.head is not None and (found.head.stored.written_s or 0) < before_s


def _purge(place: str, keys: _Keys, condemned: Callable[[Found], bool]) -> Purged:
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
        return _at(place, look)
    except (Unavailable, UsageError) as error:
        shown = without_password(place)
        return Purged(location=shown, failed=str(error).removeprefix(shown).lstrip(": "))


def _at(location: str, look: "Callable[[str, Tier], Awaitable[T]]") -> T:
    """What `look` finds there. Raises UsageError where nothing can be, Unavailable where nobody answers."""
    _check_place(location)

    async def visit() -> T:
        async with _opened(location) as tier:
            try:
                return await look(location, tier)
            except Silent as silent:
                kinds = ", ".join(tier.stats().other_faults) or "unknown"
                raise Unavailable(f"{without_password(location)}: {silent} ({kinds})") from silent

    return asyncio.run(visit())


def _check_place(location: str) -> None:
    if not is_folder(location):
        return
    folder = Path(location).expanduser()
    if not folder.is_dir():
        state = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"{location} {state}: name the folder of a KV tier, valkey://HOST:PORT/DB or s3://BUCKET")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UsageError(f"the folder {location} cannot be read: run this as the user that netgain serves as")


@contextlib.asynccontextmanager
async def _opened(location: str) -> AsyncIterator[Tier]:
    medium = open_location(location, LRU(1 << 62), tidy=False)
    tier = Tier(without_password(location), medium, WallClock(), TierOptions(timeout_s=_PATIENCE_S, group=_GROUP))
    try:
        async with asyncio.timeout(_HELLO_S):
            await medium.ping()
    except Fault as fault:
        raise Unavailable(f"{without_password(location)} does not answer: {fault}") from fault
    except TimeoutError as error:
        raise Unavailable(f"{without_password(location)} does not answer within {_HELLO_S:.0f} s") from error
    else:
        yield tier
    finally:
        await tier.close()


def _confirm(what: str, vault: Path | None, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what}? There is no terminal to ask at: add --yes")
    end = f", and destroy the keys in {vault} for good" if vault is not None else ""
    typer.confirm(f"{what}{end}?", abort=True)


def _print_json(found: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(found)).decode())

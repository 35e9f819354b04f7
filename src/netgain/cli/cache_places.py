"""Locations of KV as `netgain cache` visits them, and whose the objects there are."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from netgain.cli.cache_show import ANONYMOUS, SEALED
from netgain.documents import to_json
from netgain.errors import Unavailable, UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.inventory import Found, Silent
from netgain.serving.tiers.locations import folder_at, is_folder, open_location, without_password
from netgain.serving.tiers.medium import Fault
from netgain.serving.tiers.object import StoredObject
from netgain.serving.tiers.tier import Tier, TierOptions
from netgain.serving.tiers.vault_file import VaultFile, read_vault

_PATIENCE_S = 60.0  # for one exchange: nobody's request waits for it
_HELLO_S = 10.0  # for the first
_GROUP = 64

T = TypeVar("T")

Locations = Annotated[
    list[str],
    typer.Argument(
        metavar="LOCATION...",
        help="A folder, shm:NAME, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX.",
        show_default=False,
    ),
]
VaultOption = Annotated[
    Path | None, typer.Option("--vault", help="The vault whose keys seal the objects.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


class Keys:
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


def visit(location: str, look: "Callable[[str, Tier], Awaitable[T]]") -> T:
    """What `look` finds there. Raises UsageError where nothing can be, Unavailable where nobody answers."""
    check_place(location)

    async def look_there() -> T:
        async with _opened(location) as tier:
            try:
                return await look(location, tier)
            except Silent as silent:
                kinds = ", ".join(tier.stats().other_faults) or "unknown"
                raise Unavailable(f"{without_password(location)}: {silent} ({kinds})") from silent

    return asyncio.run(look_there())


def check_place(location: str) -> None:
    if not is_folder(location):
        return
    folder = folder_at(location)
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


def print_json(found: object) -> None:
    sys.stdout.write(to_json(found).decode())

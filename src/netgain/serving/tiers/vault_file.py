"""The file of a vault: each tenant's data key and salt, and the names of destroyed keys. Mode 0600, replaced as a whole."""

import secrets
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from netgain.errors import UsageError
from netgain.private_file import PATIENCE_S, locked, read_private, replace_private

_WHAT = "vault"

Hex16 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class TenantKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant's KV is sealed with (`key`) and addressed under (`salt`), in hex. Tenant None: a server without API
    keys. `key_id` is the name that sealed objects carry, random, so that it says nothing about the tenant."""

    tenant: str | None
    key_id: Hex16
    key: Hex32
    salt: Hex32
    created_s: int


class DestroyedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that is no more: whose it was, so that what a medium still holds under it can be found and removed."""

    tenant: str | None
    key_id: Hex16
    destroyed_s: int


class VaultFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    keys: tuple[TenantKey, ...] = ()
    destroyed: tuple[DestroyedKey, ...] = ()


def read_vault(path: Path) -> VaultFile:
    """Raises UsageError: missing, open to others, damaged."""
    data = read_private(path, _WHAT)
    try:
        found = msgspec.json.decode(data, type=VaultFile)
        if len({key.tenant for key in found.keys}) < len(found.keys):
            raise ValueError("a tenant has two keys")
    except ValueError as error:
        raise UsageError(
            f"the vault {path} is damaged ({error}): restore it, or name another file; "
            "without its keys what was stored cannot be read"
        ) from error
    return found


def make_vault(path: Path) -> None:
    """An empty one where none is. Raises UsageError where one is that cannot be used, or none can be made."""
    with locked(path, _WHAT):
        if path.exists():
            read_vault(path)
        else:
            _write(path, VaultFile())


def add_key(path: Path, tenant: str | None, now_s: int, within_s: float = PATIENCE_S) -> TenantKey:
    """The tenant's key, made when it has none: processes that share the file agree on it. Raises UsageError, also where another
    process is not done with the file within that time."""
    with locked(path, _WHAT, within_s):
        found = read_vault(path) if path.exists() else VaultFile()
        for key in found.keys:
            if key.tenant == tenant:
                return key
        made = new_key(tenant, now_s)
        _write(path, msgspec.structs.replace(found, keys=(*found.keys, made)))
        return made


def new_key(tenant: str | None, now_s: int) -> TenantKey:
    return TenantKey(
        tenant=tenant,
        key_id=secrets.token_hex(16),
        key=secrets.token_hex(32),
        salt=secrets.token_hex(32),
        created_s=now_s,
    )


def destroy_keys(
    path: Path, tenants: frozenset[str | None] | None, now_s: int, within_s: float = PATIENCE_S
) -> tuple[DestroyedKey, ...]:
    """Destroy these tenants' keys (None: everybody's) and return them by name. When this returns, nothing sealed with them
    can be read by anybody who has not kept a copy of the file. Raises UsageError, as `add_key`."""
    with locked(path, _WHAT, within_s):
        found = read_vault(path)
        gone = tuple(
            DestroyedKey(tenant=key.tenant, key_id=key.key_id, destroyed_s=now_s)
            for key in found.keys
            if tenants is None or key.tenant in tenants
        )
        if gone:
            named = {key.key_id for key in gone}
            left = tuple(key for key in found.keys if key.key_id not in named)
            _write(path, VaultFile(keys=left, destroyed=(*found.destroyed, *gone)), wipe=True)
    return gone


def _write(path: Path, vault: VaultFile, wipe: bool = False) -> None:
    data = msgspec.json.format(msgspec.json.encode(vault), indent=2) + b"\n"
    replace_private(path, data, _WHAT, wipe)

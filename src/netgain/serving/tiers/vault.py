"""Sealed KV: every payload encrypted with its tenant's own key and bound to its header, so that a tier learns nothing of the
prompts, gives no tenant another's KV, and forgets a tenant at once, wherever copies lie, when the key is destroyed."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.private_file import state_of
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.scope import Scope, Tenants
from netgain.serving.tiers.envelope import Owners, date_of
from netgain.serving.tiers.object import Reason, Refused, Seal, StoredObject, associated
from netgain.serving.tiers.vault_file import (
    TenantKey,
    VaultFile,
    add_key,
    destroy_keys,
    make_vault,
    new_key,
    read_vault,
)
from netgain.serving.tiers.xaes import NotAuthentic, decrypt, encrypt, new_nonce

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.25  # with another process that is changing the file, while requests wait
_PURGE_PATIENCE_S = 2.0


class Vault:
    """An Envelope (see there) over a vault's file, which it follows: keys that another process destroys are forgotten before
    the next object is sealed or opened, keys that another one makes are used.

    A tenant's key is made when the tenant first comes. While the file cannot be read or written, or another process keeps it
    locked, a key lives in this process alone: what it seals is of no use to others, and nothing fails.
    """

    only_whole = True

    def __init__(self, path: Path, unix_s: Callable[[], float] = time.time) -> None:
        """Makes the file where there is none. Raises UsageError where it cannot be used."""
        make_vault(path)
        self._path = path
        self._unix_s = unix_s
        self._lock = threading.Lock()  # of what is known here; held for reading the file at most
        self._adding = threading.Lock()  # one key after the other; held while one is written
        self._owners = Owners()
        self._state: tuple[int, int, int] | None = None
        self._keys: dict[str | None, TenantKey] = {}
        self._own: dict[str | None, TenantKey] = {}
        self._destroyed: dict[bytes, str | None] = {}
        self._take(read_vault(path))
        self._state = state_of(path)

    def root(self, namespace: Namespace, salt: bytes) -> bytes:
        scope = Scope.of(salt)
        secret = bytes.fromhex(self._key_of(scope.tenant).salt)
        root = namespace.root(msgspec.structs.replace(scope, secret=secret).salt)
        return self._owners.remember(root, scope.tenant)

    def lacks(self, salt: bytes) -> bool:
        self._follow()
        tenant = Scope.of(salt).tenant
        return tenant not in self._keys and tenant not in self._own

    def make_ready(self, salt: bytes) -> None:
        self._key_of(Scope.of(salt).tenant)

    def wrap(self, stored: StoredObject) -> StoredObject | None:
        try:
            key = self._key_of(self._owners.tenant(stored.root))
            self._owners.tenant(stored.root)  # still: with the last key, which it may come from, the root is forgotten
        except KeyError:
            return None
        return self._sealed(stored, key)

    def unwrap(self, found: StoredObject) -> StoredObject:
        try:
            tenant = self._owners.tenant(found.root)
        except KeyError:
            raise Refused(Reason.NO_KEY, "nobody asked for its root lately") from None
        return self.open(found, tenant)

    def seal(self, stored: StoredObject, tenant: str | None) -> StoredObject:
        """The object dated (see Envelope.wrap), its payload encrypted and the rest of it bound to that."""
        return self._sealed(stored, self._key_of(tenant))

    def _sealed(self, stored: StoredObject, key: TenantKey) -> StoredObject:
        seal = Seal(bytes.fromhex(key.key_id), new_nonce())
        dated = msgspec.structs.replace(stored, written_s=date_of(stored, self._unix_s), tenant=None, seal=seal)
        payload = encrypt(bytes.fromhex(key.key), seal.nonce, stored.payload, associated(dated))
        return msgspec.structs.replace(dated, payload=payload)

    def open(self, sealed: StoredObject, tenant: str | None) -> StoredObject:
        """The object as it was before it was sealed, dated. Raises Refused, also where the key is another tenant's."""
        if sealed.seal is None:
            raise Refused(Reason.UNSEALED, "in the clear, where sealed objects alone are used")
        key = self._key_of(tenant)
        if bytes.fromhex(key.key_id) != sealed.seal.key_id:
            raise Refused(
                Reason.NO_KEY, f"sealed with the key {sealed.seal.key_id.hex()[:8]}, which this tenant has not"
            )
        try:
            payload = decrypt(bytes.fromhex(key.key), sealed.seal.nonce, sealed.payload, associated(sealed))
        except NotAuthentic as error:
            raise Refused(Reason.FORGED, "payload and header were not sealed together with this key") from error
        return msgspec.structs.replace(sealed, payload=payload, seal=None)

    def tenant_of(self, seal: Seal) -> str | None:
        """Whose object this is. Raises Refused where its key is not here, or is destroyed."""
        self._follow()
        for key in self._keys.values():
            if bytes.fromhex(key.key_id) == seal.key_id:
                return key.tenant
        state = "is destroyed" if seal.key_id in self._destroyed else "is not in this vault"
        raise Refused(Reason.NO_KEY, f"its key {seal.key_id.hex()[:8]} {state}")

    def forget(self, tenants: Tenants) -> int:
        gone = destroy_keys(self._path, tenants, int(self._unix_s()), _PURGE_PATIENCE_S)
        self._owners.forget(tenants)
        self._follow()
        return len(gone)

    def is_of(self, stored: StoredObject, tenants: Tenants) -> bool | None:
        if tenants is None:
            return True
        if stored.seal is None:
            return stored.tenant in tenants
        self._follow()
        names = {bytes.fromhex(key.key_id): key.tenant for key in self._keys.values()} | self._destroyed
        return names[stored.seal.key_id] in tenants if stored.seal.key_id in names else None

    def is_destroyed(self, seal: Seal) -> bool:
        """Whether the object can never be read again."""
        self._follow()
        return seal.key_id in self._destroyed

    def _key_of(self, tenant: str | None) -> TenantKey:
        self._follow()
        if (key := self._keys.get(tenant) or self._own.get(tenant)) is not None:
            return key
        with self._adding:
            if (key := self._keys.get(tenant) or self._own.get(tenant)) is not None:
                return key
            try:
                key = add_key(self._path, tenant, int(self._unix_s()), _PATIENCE_S)
            except UsageError as error:
                _log.error("a tenant's KV is sealed with a key of this process alone: %s", error)
                with self._lock:
                    key = self._own[tenant] = new_key(tenant, int(self._unix_s()))
            else:
                with self._lock:  # a read of the file from before it was written has been taken by now
                    self._keys[tenant] = key
        return key

    def _follow(self) -> None:
        """Take the file as it is now; a file that is gone or cannot be used holds no keys."""
        state = state_of(self._path)
        if state == self._state:
            return
        with self._lock:
            try:
                found = read_vault(self._path)
            except UsageError as error:
                _log.error("the vault's keys are forgotten: %s", error)
                found = VaultFile()
            self._take(found)
            self._state = state

    def _take(self, found: VaultFile) -> None:
        keys = {key.tenant: key for key in found.keys}
        gone = {name for name, key in (self._own | self._keys).items() if keys.get(name) != key}
        self._owners.forget(frozenset(gone))  # their roots come from the secrets of keys that are no more
        self._keys = keys
        self._own = {}
        self._destroyed = {bytes.fromhex(key.key_id): key.tenant for key in found.destroyed}

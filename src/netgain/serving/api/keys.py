"""API keys at rest: a file that holds salted hashes and never a key, readable by its owner alone and replaced as a whole."""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from netgain.errors import UsageError
from netgain.private_file import locked, read_private, replace_private

PREFIX = "ng"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SECRET_BYTES = 32
# A secret is 256 random bits, so that no guessing succeeds however cheap a guess is; the cost is a second wall.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P, _HASH_BYTES = 1 << 14, 8, 1, 32

Count = Annotated[int, msgspec.Meta(ge=1)]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one key may use; None: no limit. `priority_floor` is the lowest (most urgent) priority number it may ask for."""

    max_in_flight: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_tokens: Count | None = None
    priority_floor: int = 0


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key as it is stored: `salt` and `hash` (scrypt of the secret) in hex, times as ISO 8601 in UTC."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    tenant: Annotated[str, msgspec.Meta(pattern=f"^{_TENANT.pattern}$")]
    salt: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: str
    revoked: str | None = None
    operator: bool = False
    limits: KeyLimits = KeyLimits()

    def verify(self, secret: str) -> bool:
        """Whether `secret` is this key's. Takes tens of milliseconds, on purpose."""
        return hmac.compare_digest(_scrypt(secret, bytes.fromhex(self.salt)), bytes.fromhex(self.hash))


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    keys: tuple[KeyEntry, ...]


def default_file(environment: Mapping[str, str] = os.environ) -> Path:
    """$XDG_CONFIG_HOME/netgain/keys.json, else ~/.config/netgain/keys.json. Raises UsageError where there is no home."""
    try:
        return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "netgain" / "keys.json"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder; name the key file with --file, or set XDG_CONFIG_HOME"
        ) from error


def split_key(key: str) -> tuple[str, str] | None:
    """The id and the secret of a key as clients send it; None for what cannot be one."""
    prefix, _, rest = key.partition("-")
    key_id, _, secret = rest.partition("-")
    return (key_id, secret) if prefix == PREFIX and len(key_id) == 8 and 0 < len(secret) <= 128 else None


def read_keys(path: Path) -> tuple[KeyEntry, ...]:
    """All keys of a file, revoked ones too. Raises UsageError: missing, open to others, damaged."""
    hint = f"; `netgain keys new --tenant NAME --file {path}` makes one"
    data = read_private(path, "key file", hint)
    try:
        keys = msgspec.json.decode(data, type=_File).keys
        if len({entry.id for entry in keys}) < len(keys):
            raise ValueError("two keys have the same id")
    except ValueError as error:  # msgspec's and Unicode's errors are ValueErrors
        raise UsageError(
            f"the key file {path} is damaged ({error}): restore it, or make new keys in another"
        ) from error
    return keys


def new_key(path: Path, tenant: str, limits: KeyLimits, operator: bool = False) -> str:
    """Make a key, add its hash to the file (made when missing) and return the key: it can never be shown again.

    Raises UsageError.
    """
    if not _TENANT.fullmatch(tenant):
        raise UsageError(f"the tenant {tenant!r} is no name: 1 to 64 letters, digits, '.', '_', '@' or '-'")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_bytes(16)
    with locked(path, "key file"):
        keys = read_keys(path) if path.exists() else ()
        taken = {entry.id for entry in keys}
        while (key_id := secrets.token_hex(4)) in taken:
            continue
        entry = KeyEntry(
            id=key_id,
            tenant=tenant,
            salt=salt.hex(),
            hash=_scrypt(secret, salt).hex(),
            created=_now(),
            operator=operator,
            limits=limits,
        )
        _write(path, (*keys, entry))
    return f"{PREFIX}-{key_id}-{secret}"


def revoke_key(path: Path, key_id: str) -> KeyEntry:
    """Mark a key as revoked; a server that uses the file refuses it within a second or two. Raises UsageError."""
    given = split_key(key_id)
    key_id = key_id if given is None else given[0]  # the whole key names itself, too
    with locked(path, "key file"):
        keys = read_keys(path)
        found = next((entry for entry in keys if entry.id == key_id), None)
        if found is None:
            raise UsageError(f"{path} has no key with the id {key_id!r}; `netgain keys ls --file {path}` shows them")
        revoked = msgspec.structs.replace(found, revoked=found.revoked or _now())
        _write(path, tuple(revoked if entry is found else entry for entry in keys))
    return revoked


def _scrypt(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        secret.encode(),
        salt=salt,
        n=_SCRYPT_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        dklen=_HASH_BYTES,
        maxmem=256 * _SCRYPT_N * _SCRYPT_R,
    )


def _write(path: Path, keys: tuple[KeyEntry, ...]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_File(version=1, keys=keys)), indent=2) + b"\n"
    replace_private(path, data, "key file")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Who asks: the API key of a request becomes an identity, whose tenant decides what cached KV it may see."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import msgspec
from blake3 import blake3

from netgain.errors import UsageError
from netgain.private_file import state_of
from netgain.serving.api.errors import ApiError
from netgain.serving.api.keys import KeyEntry, KeyLimits, read_keys, split_key
from netgain.serving.blocks.scope import Scope
from netgain.serving.runtime.config import LimitSettings

logger = logging.getLogger("netgain.auth")

_LOOK_EVERY_S = 1.0
_REFUSED_KEPT = 1024
_VERIFYING_AT_ONCE = 2


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a request runs. Both names None: the one tenant of a server without keys."""

    tenant: str | None = None
    key_id: str | None = None
    operator: bool = True
    limits: KeyLimits | None = None

    def salt(self, cache_salt: str | None) -> bytes:
        """What separates this request's cached prefixes from others': the tenant, and within it what the request says."""
        return Scope(self.tenant, cache_salt).salt

    def __str__(self) -> str:
        return "anonymous" if self.tenant is None else f"{self.tenant}/{self.key_id}"

    def within(self, limits: LimitSettings) -> LimitSettings:
        """The server's limits, with this key's where they are tighter."""
        own = None if self.limits is None else self.limits.max_tokens
        if own is None or (limits.max_tokens is not None and limits.max_tokens <= own):
            return limits
        return limits.model_copy(update={"max_tokens": own})

    def priority(self, asked: int | None) -> int:
        """The priority to run with; a lower number is more urgent. Raises ApiError for one that the key may not ask for."""
        floor = None if self.limits is None else self.limits.priority_floor
        if asked is None:
            return max(0, floor or 0)
        if floor is not None and asked < floor:
            raise ApiError(
                400,
                f"priority is {asked}, the most urgent that this API key may ask for is {floor} (lower is more urgent)",
                param="priority",
            )
        return asked


ANONYMOUS = Identity()


class Authenticator:
    """The keys of a file. A key is verified against its slow hash once and recognised by a keyed digest from then on."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file cannot be used."""
        self._path = path
        self._digest_key = secrets.token_bytes(32)
        self._entries: dict[str, KeyEntry] = {}
        self._known: dict[bytes, Identity] = {}
        self._refused: OrderedDict[bytes, None] = OrderedDict()
        self._verifying = asyncio.Semaphore(_VERIFYING_AT_ONCE)
        self._seen = state_of(path)
        self._take(read_keys(path))

    @property
    def count(self) -> int:
        """Keys that are accepted."""
        return len(self._entries)

    async def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """The identity behind a request's headers (names in lower case). Raises ApiError 401."""
        values = [value for name, value in headers if name == b"authorization"]
        if not values:
            raise _unauthorized("this server needs an API key: send it as 'Authorization: Bearer KEY'", None)
        scheme, _, key = values[0].strip().partition(b" ")
        if len(values) > 1 or scheme.lower() != b"bearer" or not key.strip():
            raise _unauthorized("the Authorization header must read 'Bearer KEY'", "invalid_request")
        digest = blake3(key.strip(), key=self._digest_key).digest()
        identity = self._known.get(digest)
        if identity is None:
            identity = await self._verify(key.strip().decode("latin-1"), digest)
        return identity

    def reload(self) -> bool:
        """Read the file again. A file that cannot be used is logged and changes nothing; then this is False."""
        self._seen = state_of(self._path)
        try:
            keys = read_keys(self._path)
        except UsageError as error:
            logger.error("the API keys stay as they are: %s", error)
            return False
        self._take(keys)
        logger.info("%d API keys are accepted", self.count)
        return True

    async def watch(self) -> None:
        """Reload whenever the file changes, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if state_of(self._path) != self._seen:
                self.reload()

    def _take(self, keys: Iterable[KeyEntry]) -> None:
        before = self._entries
        self._entries = {entry.id: entry for entry in keys if entry.revoked is None}
        self._refused.clear()
        self._known = {
            digest: _identity(entry)
            for digest, identity in self._known.items()
            if identity.key_id is not None
            and (entry := self._entries.get(identity.key_id)) is not None
            and entry.hash == before[identity.key_id].hash
        }

    async def _verify(self, key: str, digest: bytes) -> Identity:
        parts = split_key(key)
        entry = None if parts is None else self._entries.get(parts[0])
        if parts is None or entry is None or digest in self._refused:
            raise _refusal()
        async with self._verifying:  # however many wrong keys come, most of the processor is left for those who may
            matches = await asyncio.to_thread(entry.verify, parts[1])
        if self._entries.get(entry.id) != entry:  # revoked meanwhile, or changed
            return await self._verify(key, digest)
        if not matches:
            self._refused[digest] = None
            if len(self._refused) > _REFUSED_KEPT:
                self._refused.popitem(last=False)
            logger.warning("a request came with a wrong secret for the API key %s", entry.id)
            raise _refusal()
        identity = self._known[digest] = _identity(entry)
        return identity


def _identity(entry: KeyEntry) -> Identity:
    return Identity(tenant=entry.tenant, key_id=entry.id, operator=entry.operator, limits=entry.limits)


def _refusal() -> ApiError:
    return _unauthorized("the API key is not known to this server, or was revoked", "invalid_token")


def _unauthorized(message: str, error: str | None) -> ApiError:
    challenge = 'Bearer realm="netgain"' + (f', error="{error}"' if error else "")
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": challenge})

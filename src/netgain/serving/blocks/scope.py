"""Who may reuse whose KV: the salt under which a request's blocks are addressed, and back from it whose they are."""

import msgspec

Tenants = frozenset[str | None] | None  # None: all of them


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """Requests share cached prefixes exactly where all of this is equal.

    `tenant` comes from authentication (None: a server without keys), `cache_salt` from the request, which can only narrow what
    its tenant shares. `secret` is the tenant's own, kept in its vault: without it nobody can work out the addresses of a
    tenant's blocks from a text they guess.
    """

    tenant: str | None = None
    cache_salt: str | None = None
    secret: bytes = b""

    @property
    def salt(self) -> bytes:
        """The scope as bytes; empty where nothing separates anybody."""
        return b"" if self == Scope() else msgspec.msgpack.encode(self)

    @staticmethod
    def of(salt: bytes) -> "Scope":
        """The scope behind a salt. Raises ValueError for bytes that are none."""
        return msgspec.msgpack.decode(salt, type=Scope) if salt else Scope()

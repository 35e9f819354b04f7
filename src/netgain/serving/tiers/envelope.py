"""How KV is wrapped on its way to tiers, and for whom: in the clear with the tenant's name on it, or sealed (vault.py)."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.scope import Scope, Tenants
from netgain.serving.tiers.object import Reason, Refused, StoredObject

_ROOTS = 1 << 16


class Envelope(Protocol):
    """Methods may be called from any thread. `wrap` and `unwrap` take as long as the payload does: not for the step loop.
    `only_whole`: no part of what was wrapped is of use without the rest."""

    only_whole: bool

    def root(self, namespace: Namespace, salt: bytes) -> bytes:
        """The root of the chain of keys for requests with that salt (see Scope), in place of `namespace.root(salt)`; the
        envelope remembers whose it is. Writes a file where it `lacks` something for that salt."""
        ...

    def lacks(self, salt: bytes) -> bool:
        """Whether `root` of it would have to write a file first: to be left to `make_ready`, on a thread."""
        ...

    def make_ready(self, salt: bytes) -> None:
        """Make what it lacks for that salt; as long as a disk takes, or another process that keeps the file locked."""
        ...

    def wrap(self, stored: StoredObject) -> StoredObject | None:
        """The object as it may leave the process, for the tenant behind `stored.root`, dated now unless it has a date. None: it
        may not, since nobody asked for that root lately."""
        ...

    def unwrap(self, found: StoredObject) -> StoredObject:
        """An object as it was before it was wrapped; the caller has checked that its root is the one asked for. Raises
        Refused: a miss, to be counted, and to be removed from the tiers."""
        ...

    def forget(self, tenants: Tenants) -> int:
        """Nothing that these tenants stored is of use from now on, and what is on its way out under their roots stays here: a
        root has to be asked for anew. Destroys their keys, where it has any, and returns how many. Raises UsageError where that
        cannot be done."""
        ...

    def is_of(self, stored: StoredObject, tenants: Tenants) -> bool | None:
        """Whether it is theirs, by its header; None: that is not known here."""
        ...


class Owners:
    """Whose the roots are that were asked for lately; a hash does not tell."""

    def __init__(self, most: int = _ROOTS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._tenants: OrderedDict[bytes, str | None] = OrderedDict()

    def remember(self, root: bytes, tenant: str | None) -> bytes:
        """The root; of more than `most` those longest not asked for are forgotten."""
        with self._lock:
            self._tenants[root] = tenant
            self._tenants.move_to_end(root)
            if len(self._tenants) > self._most:
                self._tenants.popitem(last=False)
        return root

    def forget(self, tenants: Tenants) -> None:
        """Their roots have to be asked for anew."""
        with self._lock:
            for root in [root for root, tenant in self._tenants.items() if tenants is None or tenant in tenants]:
                del self._tenants[root]

    def tenant(self, root: bytes) -> str | None:
        """Raises KeyError for a root that nobody asked for lately."""
        return self._tenants[root]


def date_of(stored: StoredObject, unix_s: Callable[[], float]) -> int:
    """When it left the device first, now for one that is only leaving: what passes from tier to tier grows no younger."""
    return int(unix_s()) if stored.written_s is None else stored.written_s


class PlainEnvelope:
    """In the clear: whoever can read a tier can read the prompts whose KV it holds."""

    only_whole = False

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        self._unix_s = unix_s
        self._owners = Owners()

    def root(self, namespace: Namespace, salt: bytes) -> bytes:
        return self._owners.remember(namespace.root(salt), Scope.of(salt).tenant)

    def lacks(self, salt: bytes) -> bool:
        return False

    def make_ready(self, salt: bytes) -> None:
        return

    def wrap(self, stored: StoredObject) -> StoredObject | None:
        try:
            tenant = self._owners.tenant(stored.root)
        except KeyError:
            return None
        return msgspec.structs.replace(stored, written_s=date_of(stored, self._unix_s), tenant=tenant)

    def unwrap(self, found: StoredObject) -> StoredObject:
        if found.seal is not None:
            raise Refused(Reason.NO_KEY, "sealed, and this reader has no vault")
        return found

    def forget(self, tenants: Tenants) -> int:
        self._owners.forget(tenants)
        return 0

    def is_of(self, stored: StoredObject, tenants: Tenants) -> bool | None:
        if tenants is None:
            return True
        return None if stored.seal is not None else stored.tenant in tenants

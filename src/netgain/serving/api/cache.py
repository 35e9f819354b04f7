"""The operators' route by which a running server forgets cached KV: on the device, in its memory and in its tiers."""

from typing import Any

import msgspec

from netgain.serving.api.errors import ApiError
from netgain.serving.blocks.scope import Tenants
from netgain.serving.fleet.fleet import Fleet


async def purge(fleet: Fleet, tenant: str | None, everything: bool) -> dict[str, Any]:
    """What each engine forgot; `failed` says why one did not, or not all. The tenant is named in the address: whoever asks is
    known by their key, and a body is not read. Raises ApiError."""
    if (tenant is None) is not everything:
        raise ApiError(400, "say what to purge: tenant=NAME or all=true, behind the path", param="tenant")
    tenants: Tenants = None if everything else frozenset({tenant})
    engines = {}
    for name, found in (await fleet.purge_cache(tenants)).items():
        engines[name] = msgspec.json.decode(found) if isinstance(found, bytes) else {"failed": str(found)}
    return {"tenant": tenant, "all": everything, "engines": engines}

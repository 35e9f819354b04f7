"""What a Valkey or Redis server's own limit of memory means for KV that is kept there."""

from collections.abc import Iterator

import msgspec

from netgain.cost.quantity import write_size


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """As its INFO says; `maxmemory` in bytes, 0: none."""

    maxmemory: int
    policy: str
    used: int = 0


def limit_notices(limits: ServerLimits, capacity: int | None, ttl_s: float | None) -> Iterator[str]:
    """What works against keeping KV there, each with its mend. `capacity`: netgain's own (None: none), `ttl_s`: after which its
    objects expire (None: never)."""
    most, policy = limits.maxmemory, limits.policy
    if not most:
        if capacity is None:
            until = "for ever" if ttl_s is None else f"until it expires, after {ttl_s:g} s"
            yield (
                f"the server has no limit of memory (maxmemory 0) and the tier no capacity: KV stays {until}, and may take all "
                "the memory there is. Set maxmemory and maxmemory-policy allkeys-lru, or capacity=SIZE behind the tier"
            )
        return
    told = f"maxmemory {write_size(most)}, maxmemory-policy {policy}"
    if capacity is not None and capacity >= most:
        yield (
            f"the tier's capacity of {write_size(capacity)} is not below the server's limit ({told}): make it smaller, or raise "
            "maxmemory"
        )
    if policy == "noeviction" and capacity is None:
        yield (
            f"the server evicts nothing ({told}): once it is full it refuses new KV until something expires or is removed. Set "
            "maxmemory-policy allkeys-lru, or capacity=SIZE behind the tier, below maxmemory"
        )
    if policy.startswith("volatile-") and ttl_s is None:
        yield (
            f"the server evicts only what expires ({told}), and netgain's objects never do (ttl=0): it can evict none of them. "
            "Set ttl behind the tier, or maxmemory-policy allkeys-lru"
        )

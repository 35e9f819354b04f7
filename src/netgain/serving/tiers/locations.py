"""Where a tier lies, as users write it: a folder, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX."""

import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from netgain.errors import UsageError
from netgain.serving.tiers.disk import DiskMedium, DiskOptions
from netgain.serving.tiers.eviction import Eviction
from netgain.serving.tiers.medium import Medium

_SERVERS = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss"}
_BUCKETS = ("s3",)


def is_folder(location: str) -> bool:
    """Whether a location is one of this machine's folders."""
    return "://" not in location


def without_password(location: str) -> str:
    """The location as it may be shown."""
    parts = urlsplit(location)
    if is_folder(location) or parts.password is None:
        return location
    user = f"{parts.username}:***" if parts.username else ":***"
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


def open_location(location: str, eviction: Eviction, ttl_s: float | None = None, tidy: bool = True) -> Medium:
    """The medium there. `eviction` holds a folder below its size; servers and buckets have limits of their own. `ttl_s`: a
    server forgets what was written so long ago (buckets have lifecycle rules for that). `tidy`: see DiskOptions.

    Raises UsageError for what is no location, Unavailable where its client is not installed.
    """
    if is_folder(location):
        return DiskMedium(Path(location).expanduser(), eviction, DiskOptions(tidy=tidy))
    scheme, _, rest = location.partition("://")
    if scheme in _SERVERS:
        from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions  # an extra that folders do without

        return RemoteMedium(f"{_SERVERS[scheme]}://{rest}", RemoteOptions(ttl_s=ttl_s))
    if scheme in _BUCKETS:
        from netgain.serving.tiers.objects import ObjectsMedium, ObjectsOptions

        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise UsageError(f"{location!r} names no bucket: write s3://BUCKET or s3://BUCKET/PREFIX")
        chosen = ObjectsOptions(allow_http=os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"))
        if prefix.strip("/"):
            chosen = ObjectsOptions(prefix=prefix.strip("/"), allow_http=chosen.allow_http)
        return ObjectsMedium(f"s3://{bucket}", chosen)
    raise UsageError(
        f"{without_password(location)!r} is no place for KV: write a folder, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX"
    )

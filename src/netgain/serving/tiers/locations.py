"""Where a tier lies, as users write it: a folder, shm:NAME, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX, with what `netgain
serve` takes behind a question mark (`prefix` of a server's keys; `endpoint` and `region` of a bucket)."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from netgain.cost.quantity import size
from netgain.errors import UsageError
from netgain.secrecy import without_userinfo
from netgain.serving.tiers.addresses import check_endpoint, check_server
from netgain.serving.tiers.disk import DiskMedium, DiskOptions
from netgain.serving.tiers.eviction import Eviction
from netgain.serving.tiers.medium import Medium
from netgain.serving.tiers.shared_memory import check_name, folder_of

_SERVERS = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss"}
_BUCKETS = ("s3",)
_SHM = "shm:"
_WHERE = ("prefix", "endpoint", "region")
_NEVER = re.compile(r"0+(\.0*)?(us|ms|s)?")
_HOW = ("admit", "bandwidth", "capacity", "codec", "codec_when", "latency", "ttl", "write")


def is_folder(location: str) -> bool:
    """Whether a location is one of this machine's folders, shared memory among them."""
    return "://" not in location


def folder_at(location: str) -> Path:
    """The folder that a location is, there or not. Raises UsageError for what is no name of shared memory."""
    if not location.startswith(_SHM):
        return Path(location).expanduser()
    try:
        check_name(name := location.removeprefix(_SHM))
    except ValueError as error:
        raise UsageError(f"{error}; a folder of that name is ./{location}") from error
    return folder_of(name)


def without_password(location: str) -> str:
    """The location as it may be shown."""
    return location if is_folder(location) else without_userinfo(location)


def _options(location: str, query: str) -> dict[str, str]:
    """Those that say where; of those that say how a tier behaves nothing is needed. A name that is neither would be taken for
    one that was left out, and the objects under another prefix would be purged. Raises UsageError."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _WHERE and name not in _HOW:
            known = ", ".join(_WHERE)
            raise UsageError(f"{without_password(location)!r}: a location has no option {name!r}; it has {known}")
    try:
        if location.partition("://")[0] in _SERVERS:
            check_server(location.partition("?")[0])
        if "endpoint" in options:
            check_endpoint(options["endpoint"])
    except ValueError as error:
        raise UsageError(f"{without_password(location)!r}: {error}") from error
    return options


def open_location(location: str, eviction: Eviction, tidy: bool = True) -> Medium:
    """The medium there, for who looks into it. `eviction` holds a folder below its size; servers and buckets are left as they
    are: of their `capacity` and `ttl` only the server's own settings are judged by. `tidy`: see DiskOptions.

    Raises UsageError for what is no location, Unavailable where its client is not installed.
    """
    if is_folder(location):
        return DiskMedium(folder_at(location), eviction, DiskOptions(tidy=tidy))
    address, _, query = location.partition("?")
    scheme, _, rest = address.partition("://")
    options = _options(location, query)
    if scheme in _SERVERS:
        from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions  # an extra that folders do without

        server = RemoteOptions(capacity=int(size(options["capacity"]).value) if "capacity" in options else None)
        if _NEVER.fullmatch(options.get("ttl", "")):
            server = msgspec.structs.replace(server, ttl_s=None)
        if "prefix" in options:
            server = msgspec.structs.replace(server, prefix=options["prefix"])
        return RemoteMedium(f"{_SERVERS[scheme]}://{rest}", server)
    if scheme in _BUCKETS:
        from netgain.serving.tiers.objects import ObjectsMedium, ObjectsOptions

        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise UsageError(f"{without_password(location)!r} names no bucket: write s3://BUCKET or s3://BUCKET/PREFIX")
        endpoint = options.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))
        chosen = ObjectsOptions(
            settings={name: options[name] for name in ("endpoint", "region") if name in options},
            allow_http=endpoint.startswith("http://"),
        )
        if prefix.strip("/"):
            chosen = msgspec.structs.replace(chosen, prefix=prefix.strip("/"))
        return ObjectsMedium(f"s3://{bucket}", chosen)
    raise UsageError(
        f"{without_password(location)!r} is no place for KV: write a folder, shm:NAME, valkey://HOST:PORT/DB or s3://BUCKET/PREFIX"
    )

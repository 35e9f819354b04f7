"""KV tiers as users name them (`dram:2GiB`, `disk:/var/kv:10GiB`, `s3://bucket/prefix`). Read with the settings, so by processes
that store nothing: no tier is imported here."""

import re
from types import MappingProxyType
from urllib.parse import parse_qsl

import msgspec

from netgain.secrecy import without_userinfo
from netgain.serving.tiers.addresses import check_endpoint, check_server
from netgain.serving.tiers.admission import RULES
from netgain.serving.tiers.codecs.names import unknown
from netgain.serving.tiers.eviction import POLICIES
from netgain.serving.tiers.shared_memory import check_name

FORMS = "dram:SIZE, shm:NAME:SIZE, disk:FOLDER:SIZE, valkey://HOST:PORT/DB, redis://HOST:PORT/DB or s3://BUCKET/PREFIX"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COMMON = frozenset({"bandwidth", "latency", "codec", "codec_when", "admit", "write"})
_CHOICES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "codec_when": ("sooner", "always"),
        "eviction": tuple(POLICIES),
        "durable": ("true", "false"),
        "admit": tuple(RULES),
        "write": ("through", "back"),
    }
)
_OPTIONS = MappingProxyType(
    {
        "dram": _COMMON | {"eviction"},
        "shm": _COMMON | {"eviction"},
        "disk": _COMMON | {"eviction", "durable"},
        "valkey": _COMMON | {"ttl", "prefix", "capacity"},
        "s3": _COMMON | {"endpoint", "region", "capacity"},
    }
)


class TierSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tier: `where` is a folder, a name of shared memory or an address; `capacity_bytes` 0 is a server's or bucket's without
    one of netgain's own. `admit` is a rule of admission.py; `write`: it is offered what is stored, or (back) what the tier above
    gives up; `hands_down` is set of that tier above. `codec` and `codec_when` are this tier's own, None what the settings say of
    all. `bandwidth` (bytes/s) and `latency` (seconds) put it behind a link of that shape, for experiments."""

    kind: str
    where: str = ""
    capacity_bytes: int = 0
    eviction: str = "lru"
    admit: str = "all"
    write: str = "through"
    durable: bool = True
    ttl_s: float | None = 86_400.0
    prefix: str | None = None
    endpoint: str | None = None
    region: str | None = None
    bandwidth: float | None = None
    latency: float = 0.0
    codec: tuple[str, ...] | None = None
    codec_when: str | None = None
    hands_down: bool = False


def parse_tier(text: str) -> TierSpec:
    """Raises ValueError saying what is wrong with `text`."""
    body, _, query = text.partition("?")
    kind, _, rest = body.partition(":")
    kind, told = "valkey" if kind in ("redis", "rediss", "valkeys") else kind, shown(text)
    if kind not in _OPTIONS:
        raise ValueError(f"{told!r} is no KV tier: write {FORMS}")
    if kind == "valkey" and "://" in text:
        before, at, behind = text.rpartition("@")  # a password may hold what would begin the options
        check_server(f"{before}{at}{behind.partition('?')[0]}")
    options = _options(kind, told, query)
    if kind == "dram":
        return TierSpec(kind=kind, capacity_bytes=_size(rest, told), **{"eviction": "arc", **options})
    if kind == "shm":
        name, _, size = rest.rpartition(":")
        check_name(name)
        return TierSpec(kind=kind, where=name, capacity_bytes=_size(size, told), **{"eviction": "arc", **options})
    if kind == "disk":
        folder, _, size = rest.rpartition(":")
        if not folder:
            raise ValueError(f"{told!r} does not say how much the folder may hold: write disk:FOLDER:SIZE, e.g. 10GiB")
        return TierSpec(kind=kind, where=folder, capacity_bytes=_size(size, told), **options)
    host, _, path = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not host:
        raise ValueError(f"{told!r} names no {'bucket' if kind == 's3' else 'server'}: write {FORMS}")
    if kind == "s3":
        return TierSpec(kind=kind, where=f"s3://{host}", prefix=path.strip("/") or None, **options)
    scheme = "rediss" if body.startswith(("rediss:", "valkeys:")) else "redis"
    return TierSpec(kind=kind, where=f"{scheme}:{rest}", **options)


def shown(tier: str) -> str:
    """The tier as it may be shown to anybody: without the password of a server."""
    return tier if tier.partition(":")[0] in ("dram", "shm", "disk") else without_userinfo(tier)


def _options(kind: str, text: str, query: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS[kind]:
            known = ", ".join(sorted(_OPTIONS[kind]))
            raise ValueError(f"{text!r}: a {kind} tier has no option {name!r}; it has {known}")
        if {"ttl": "ttl_s", "capacity": "capacity_bytes"}.get(name, name) in values:
            raise ValueError(f"{text!r} says {name} twice: leave one")
        if name == "endpoint":
            _checked(value, text)
        if name == "bandwidth":
            values[name] = float(_size(value.removesuffix("/s"), text))
        elif name in ("latency", "ttl"):
            seconds = _seconds(value, text)
            values["ttl_s" if name == "ttl" else name] = seconds or (None if name == "ttl" else 0.0)
        elif name == "capacity":
            values["capacity_bytes"] = _size(value, text)
        elif name == "codec":
            values[name] = _codecs(value, text)
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise ValueError(f"{text!r}: {name} is {' or '.join(_CHOICES[name])}, not {value!r}")
            values[name] = value == "true" if name == "durable" else value
        else:
            values[name] = value
    if values.get("write") == "back" and values.get("admit", "all") != "all":
        raise ValueError(
            f"{text!r}: a tier that is written back takes what the tier above gives up, so admit belongs to that one"
        )
    return values


def _checked(endpoint: str, whole: str) -> None:
    try:
        check_endpoint(endpoint)
    except ValueError as error:
        raise ValueError(f"{whole!r}: {error}") from error


def _codecs(value: str, whole: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    for name in names:
        if said := unknown(name):
            raise ValueError(f"{whole!r}: {said}")
    return names


def _size(text: str, whole: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text.strip(), re.IGNORECASE)
    size = round(float(found[1]) * _UNITS.get(found[2].upper(), 0)) if found else 0
    if size < 1:
        raise ValueError(f"{whole!r}: {text!r} is no size; write for example 512MiB, 2GiB or 10GB")
    return size


def _seconds(text: str, whole: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)?", text.strip())
    if not found:
        raise ValueError(f"{whole!r}: {text!r} is no time; write for example 500us, 2ms or 3600s")
    return float(found[1]) * _TIMES[found[2] or "s"]

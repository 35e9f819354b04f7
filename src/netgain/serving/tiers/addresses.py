"""Whether an address of a server or a bucket's endpoint can be one. Clients take what they cannot read for a default, and a
purge of database `1O` would empty database 0."""

import re
from urllib.parse import urlsplit

from netgain.secrecy import without_userinfo

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/]+)(?::(?P<port>[^/]*))?(?:/(?P<database>.*))?", re.DOTALL)
_CUTS = re.compile("[/?#]")  # what ends the part of an address that a password stands in


def check_server(address: str) -> None:
    """SCHEME://[USER:PASSWORD@]HOST[:PORT][/DATABASE]. Raises ValueError, which repeats no password."""
    secret, _, place = address.partition("://")[2].rpartition("@")
    told = without_userinfo(address)
    if _CUTS.search(secret):
        raise ValueError(f"{told!r}: write / ? and # in its password as %2F, %3F and %23")
    found = _PLACE.fullmatch(place)
    if not found:
        raise ValueError(f"{told!r} names no server: write HOST:PORT/DB behind its ://")
    port, database = found["port"], found["database"]
    if port is not None and not (_number(port) and 1 <= int(port) <= 65535):
        raise ValueError(f"{told!r}: {port!r} is no port: write a number from 1 to 65535")
    if database and not _number(database):
        raise ValueError(f"{told!r}: {database!r} is no database: write its number, as in HOST:PORT/0")


def check_endpoint(endpoint: str) -> None:
    """The URL of a server that speaks S3. Raises ValueError, which repeats no password."""
    try:
        read = urlsplit(endpoint)
        good = read.scheme in ("http", "https") and bool(read.hostname) and read.port != 0
    except ValueError:  # brackets, or a port that is none
        good = False
    if not good:
        raise ValueError(
            f"the endpoint is the URL of a server, as http://HOST:9000, not {without_userinfo(endpoint)!r}"
        )


def _number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None

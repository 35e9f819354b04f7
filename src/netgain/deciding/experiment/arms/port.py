"""Ports of launched servers: a free one, or the pinned one if nobody else has it; and how a user's words pin one."""

import contextlib
import itertools
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from netgain.errors import Unavailable, UsageError

_LAST = 65_535
_FIRST = 10_240  # below lie ports that services are known by
_TRIES = 32
_SETTINGS = ("port=", "host=")  # netgain's, as --set gives them


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now, if possible one that the system gives to nobody unasked:
    a server that takes seconds before it listens finds it free still."""
    first, last = _FIRST, _given_unasked()
    tried = (first + secrets.randbelow(last - first) for _ in range(_TRIES if last > first else 0))
    for port in (*tried, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise Unavailable("no port of the loopback interface is free; end what holds them, or pin a port")


def _given_unasked() -> int:
    """The first port of those from which the system serves whoever asks for any, outgoing connections above all."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST  # not known: any port is as good


def check_port(port: int, arm: str) -> None:
    """Raises UsageError when `port` is no port. `arm`: whose it is, in words."""
    if not 1 <= port <= _LAST:
        raise UsageError(f"the port of {arm} is {port}; it must lie in [1, {_LAST}]")


def check_free(port: int, arm: str) -> None:
    """Raises UsageError when `port` is no port, or when something listens there: its answers would be taken for the arm's."""
    check_port(port, f"the {arm} arm")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what only lingers may be taken
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} of the {arm} arm cannot be used ({error.strerror or error}){_holder(port)}; "
                "stop what listens there or pin another port"
            ) from error


def pinned_port(words: Sequence[str], arm: str) -> tuple[int | None, list[str]]:
    """The port that `--port N` or `--port=N` pins among the words of a command line, and the others. Raises UsageError for what
    is no port, and for a host: every server listens on the loopback interface. `arm`: whose words these are."""
    port: int | None = None
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name == "--host":
            raise UsageError(f"{arm} names {name}; leave it out: a started server listens on the loopback interface")
        if name != "--port":
            rest.append(word)
            continue
        if not equals:
            value = left.pop(0) if left else ""
        if port is not None:
            raise UsageError(f"{arm} names --port twice; give it once")
        if not (value.isascii() and value.isdigit()):
            raise UsageError(f"{arm} pins the port {value!r}; it must be a whole number in [1, {_LAST}]")
        port = int(value)
        check_port(port, arm)
    return port, rest


def names_address(flags: Sequence[str]) -> str | None:
    """The first flag that names a port or a host, which the arm itself tells the server; None where none does."""
    for before, word in itertools.pairwise(("", *flags)):
        if word.partition("=")[0] in ("--port", "--host"):
            return word
        setting = word if before == "--set" else word.removeprefix("--set=") if word.startswith("--set=") else ""
        if setting.startswith(_SETTINGS):
            return f"--set {setting}"
    return None


def _holder(port: int) -> str:
    """Who listens there, as far as this user may see."""
    try:
        for link in psutil.net_connections(kind="tcp"):
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port and link.pid:
                return f": process {link.pid} ({psutil.Process(link.pid).name()}) listens there"
    except (psutil.Error, OSError):
        return ""
    return ""

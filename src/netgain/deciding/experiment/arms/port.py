"""Ports of launched servers: a free one, or the pinned one if nobody else has it."""

import socket

import psutil

from netgain.errors import UsageError


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(port: int, arm: str) -> None:
    """Raises UsageError when `port` is no port, or when something listens there: its answers would be taken for the arm's."""
    if not 1 <= port <= 65_535:
        raise UsageError(f"the port of the {arm} arm is {port}; it must lie in [1, 65535]")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what only lingers may be taken
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} of the {arm} arm cannot be used ({error.strerror or error}){_holder(port)}; "
                "stop what listens there or pin another port"
            ) from error


def _holder(port: int) -> str:
    """Who listens there, as far as this user may see."""
    try:
        for link in psutil.net_connections(kind="tcp"):
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port and link.pid:
                return f": process {link.pid} ({psutil.Process(link.pid).name()}) listens there"
    except (psutil.Error, OSError):
        return ""
    return ""

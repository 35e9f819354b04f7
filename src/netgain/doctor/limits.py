"""What this process and its children may open and use."""

import resource
from collections.abc import Iterator

from netgain.doctor.finding import Finding, note, ok, problem
from netgain.serving.runtime.config import ServerConfig

FEWEST_FILES = 128  # both processes with their libraries, and a few clients
SPARE_FILES = 64
FEWEST_BYTES = 4 << 30  # address space; torch alone maps some of it
FEWEST_PROCESSES = 64


def files() -> Iterator[Finding]:
    """The server raises its own limit as far as it may, so the hard one counts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ServerConfig().server.max_connections + SPARE_FILES
    seen = f"{_shown(hard)} file descriptors at most, {_shown(soft)} by default"
    raised = f"ulimit -Hn {wanted} as root, or docker run --ulimit nofile={wanted} ..."
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        yield problem("limits", "file descriptors", seen, "a server and its first clients need more", raised)
    elif hard != resource.RLIM_INFINITY and hard < wanted:
        means = f"server.max_connections is {wanted - SPARE_FILES}; the connections beyond this limit would fail"
        yield note("limits", "file descriptors", seen, means, raised)
    else:
        yield ok("limits", "file descriptors", seen)


def processes() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    seen = f"{_shown(soft)} processes and threads"
    if soft != resource.RLIM_INFINITY and soft < FEWEST_PROCESSES:
        yield problem("limits", "processes", seen, "two processes with their threads may not fit", "ulimit -u 4096")
    else:
        yield ok("limits", "processes", seen)


def address_space() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < FEWEST_BYTES:
        seen = f"{soft / 2**30:.1f} GiB of address space"
        yield problem("limits", "address space", seen, "torch and a KV pool map more than that", "ulimit -v unlimited")
    else:
        yield ok(
            "limits", "address space", _shown(soft) if soft == resource.RLIM_INFINITY else f"{soft / 2**30:.1f} GiB"
        )


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)

"""The whole examination: every check at once, and a check that fails is a finding of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from netgain.doctor import cache, installed, limits, machine, network
from netgain.doctor.finding import Check, Finding, State, problem, unknown
from netgain.errors import UsageError

TORCH_WAIT_S = 15.0  # at most; torch answers sooner, but its first import on a cold disk takes several seconds
AREAS = ("software", "machine", "limits", "cache", "network", "server")


def examine(
    *, host: str = "127.0.0.1", port: int = 8000, url: str | None = None, wait_s: float = TORCH_WAIT_S
) -> tuple[Finding, ...]:
    """Findings by area. With `url` that server is asked, too, and its own port may be taken. Raises UsageError."""
    torch = installed.TorchProbe(wait_s)
    checks: list[tuple[str, str, Check]] = [
        ("software", "python", installed.python),
        ("software", "extras", installed.extras),
        ("software", "other engines", installed.peers),
        ("machine", "processor", machine.processor),
        ("machine", "cores", machine.cores),
        ("machine", "thread variables", machine.threads),
        ("machine", "memory", machine.memory),
        ("machine", "shared memory", machine.shared_memory),
        ("machine", "system", machine.system),
        ("machine", "clock", machine.clock),
        ("limits", "file descriptors", limits.files),
        ("limits", "processes", limits.processes),
        ("limits", "address space", limits.address_space),
        ("cache", "folder", cache.folder),
        ("cache", "default model", cache.model),
        ("cache", "kernels", cache.kernels),
    ]
    if url is None:
        checks.append(("network", "port", partial(network.port, host, port)))
    else:
        checks.append(("server", "server", partial(network.server, url)))
    checks.append(("software", "torch", torch.read))
    try:
        with ThreadPoolExecutor(len(checks)) as pool:
            done = list(pool.map(_run, checks))
    except RuntimeError:  # no thread can be started, which one of the checks will tell
        done = [_run(check) for check in checks]
    found = [finding for findings in done for finding in findings]
    return tuple(sorted(found, key=lambda finding: AREAS.index(finding.area)))


def stops_serving(findings: Sequence[Finding]) -> bool:
    return any(finding.state is State.PROBLEM for finding in findings)


def _run(check: tuple[str, str, Check]) -> list[Finding]:
    area, name, look = check
    try:
        return list(look())
    except UsageError as error:
        if area == "server":  # its URL is what was asked with
            raise
        return [problem(area, name, str(error), "a server could not start", "export NETGAIN_CACHE=/a/folder/of/yours")]
    except Exception as error:
        return [unknown(area, name, f"could not be found out: {type(error).__name__}: {error}")]

"""The limits of the control groups that this process lives in: a container's share of the machine."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores that the tightest group may use; None without a limit."""
    found: list[float] = []
    for folder in _folders(root):
        match _read(folder / "cpu.max").split():
            case [quota, period] if quota.isdecimal() and period.isdecimal():
                found.append(int(quota) / int(period))
    quota = _read(root / "cpu/cpu.cfs_quota_us")  # version 1
    period = _read(root / "cpu/cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal():
        found.append(int(quota) / int(period))
    return min(found, default=None)


def memory_left(root: Path = ROOT) -> tuple[int, int] | None:
    """Limit and what is left of it, in bytes, of the tightest group; page cache that can be dropped counts as left. None
    without a limit."""
    found: list[tuple[int, int]] = []
    for folder in _folders(root):
        limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            found.append((int(limit), int(limit) - int(used) + _droppable(folder)))
    return min(found, key=lambda pair: pair[1], default=None)


def _droppable(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdecimal():
            return int(value)
    return 0


def _folders(root: Path) -> list[Path]:
    """The process's own group and those around it."""
    path = next((line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/")
    own = root / path.strip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""A probe of the machine as findings: its figures, when they were taken, and whether the machine was quiet meanwhile."""

from collections.abc import Iterator

from netgain.cost.machine import Latency, MachineProbe
from netgain.doctor.finding import Finding, note, ok, unknown

AREA = "probe"


def findings_of(taken: MachineProbe, kept: MachineProbe) -> tuple[Finding, ...]:
    """Of a probe just taken (or read), and of what the cache holds after it."""
    return (*_figures(taken), _quiet(taken, kept))


def not_kept(error: Exception) -> Finding:
    means = "reports cannot say how close to the machine's limits a phase came"
    return note(AREA, "kept", f"cannot be written: {error}", means, "export NETGAIN_CACHE=/a/folder/of/yours")


def not_probed() -> Finding:
    return unknown(AREA, "machine", "not probed yet", "netgain doctor")


def _figures(probe: MachineProbe) -> Iterator[Finding]:
    if probe.reads:
        first = probe.reads[0]
        rates = ", ".join(
            f"{read.bytes_per_s / 1e9:.1f} GB/s with {read.threads} thread{'s' if read.threads > 1 else ''}"
            for read in probe.reads
        )
        how = f"{first.array_bytes / 2**30:.2g} GiB summed by {first.by}, best of {first.repeats}"
        yield ok(AREA, "memory reads", f"{rates} ({how})")
    if probe.products:
        rates = ", ".join(f"{product.dtype} {product.ops_per_s / 1e9:.3g}" for product in probe.products)
        yield ok(AREA, "matrix products", f"{rates} GFLOP/s by kernels {probe.products[0].kernels}")
    told = {"a round trip over a Unix socket": probe.round_trip, "the wake-up of a thread": probe.wake_up}
    known = [f"{what} {_latency(seen)}" for what, seen in told.items() if seen is not None]
    if known:
        yield ok(AREA, "messages", ", ".join(known))
    for reason in probe.missing:
        yield unknown(AREA, "not measured", reason)


def _latency(seen: Latency) -> str:
    return f"{seen.median_s * 1e6:.0f} µs (p99 {seen.p99_s * 1e6:.0f})"


def _quiet(taken: MachineProbe, kept: MachineProbe) -> Finding:
    foreign = "unknown" if taken.foreign_cores is None else f"{taken.foreign_cores:.1f}"
    stolen = "unknown" if taken.stolen is None else f"{taken.stolen:.1%}"
    seen = f"taken {taken.taken}; meanwhile others used {foreign} cores and the hypervisor took {stolen}"
    if not taken.busy:
        return ok(AREA, "quiet", seen)
    means = "the figures are lower than the machine's limits"
    if kept is not taken and kept != taken:
        means += f"; the quiet probe of {kept.taken} stays the one that reports use"
    return note(AREA, "quiet", seen, means, "end the other work, then: netgain doctor")

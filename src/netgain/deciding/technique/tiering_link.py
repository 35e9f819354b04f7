"""The way between device and tier that a prediction goes by: its rates, and where they are from."""

import msgspec

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.transfer_rates import PASSES, copy_rate


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per second in and out, and where they are from. `policy`: the engine loads only what is predicted to be sooner."""

    load: float
    store: float
    says: str
    policy: bool


def link_to(facts: Facts) -> Link:
    copied = copy_rate() / PASSES
    says = f"at {copied / 1e9:.1f} GB/s, a third of what copying was measured at here"
    disk = facts.disk_rates
    if facts.tier.kind == "disk" and disk is not None:
        load, store = min(copied, disk.read), min(copied, disk.write)
        past = "past the page cache" if disk.dropped else "which may have come from the page cache"
        says = (
            f"at {load / 1e6:,.0f} MB/s in and {store / 1e6:,.0f} MB/s out, as the folder was measured to be read ({past}) and "
            "written"
        )
        return Link(load=load, store=store, says=says, policy=facts.engine == "netgain")
    return Link(load=copied, store=copied, says=says, policy=facts.engine == "netgain")

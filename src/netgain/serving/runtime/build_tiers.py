"""Tiers made from what users said of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import psutil

from netgain.cost.link import ShapedLink
from netgain.cost.quantity import write_size
from netgain.errors import UsageError
from netgain.ledger.clock import Clock
from netgain.serving.runtime.tier_specs import TierSpec
from netgain.serving.tiers.bounded import BoundedMedium, BoundedOptions
from netgain.serving.tiers.disk import DiskMedium, DiskOptions
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import POLICIES
from netgain.serving.tiers.medium import Medium
from netgain.serving.tiers.object import Expected
from netgain.serving.tiers.pinning import Pinning
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.shared_memory import check_folder, folder_of
from netgain.serving.tiers.staging import Staging
from netgain.serving.tiers.tier import Tier, TierOptions

LIST_BUCKET_S = 3600.0  # every thousand names cost a request that is paid for
MEMORY = frozenset({"dram", "shm"})
FOLDERS = frozenset({"shm", "disk"})
OWN = MEMORY | FOLDERS  # that netgain keeps below a size by itself


def build_tiers(specs: Sequence[TierSpec], clock: Clock, expected: Expected, options: TierOptions) -> list[Tier]:
    """In the given order, fast to slow; of several of a kind, the later ones are numbered. Raises UsageError or Unavailable
    for what cannot be had here."""
    kinds = [spec.kind for spec in specs]
    tiers, staging = [], Staging()
    for index, spec in enumerate(specs):
        number = kinds[:index].count(spec.kind)
        below = specs[index + 1 : index + 2]
        spec = msgspec.structs.replace(spec, hands_down=any(one.write == "back" for one in below))
        name = f"{spec.kind}{number + 1}" if number else spec.kind
        tiers.append(Tier(name, _shaped(spec, _MEDIA[spec.kind](spec, staging), clock), clock, options, expected))
    return tiers


def check_room(specs: Sequence[TierSpec], objects: Sequence[int]) -> None:
    """Raises UsageError for tiers that cannot be meant: no room for a single object (of so many bytes each), more memory than the
    machine has, one folder twice, nothing above that could give anything up."""
    largest, folders = max(objects), set[Path]()
    for spec in specs:
        if (spec.kind in OWN or spec.capacity_bytes) and spec.capacity_bytes < largest:
            raise UsageError(
                f"a {spec.kind} tier of {write_size(spec.capacity_bytes)} has no room for one block of this model's KV, which "
                f"takes {write_size(largest)}: make it larger, or leave it out"
            )
        if spec.kind in FOLDERS:
            folder = folder_for(spec).resolve()
            if folder in folders:
                raise UsageError(f"the folder {spec.where} is named as two KV tiers: leave one of them out")
            folders.add(folder)
    in_memory = [spec for spec in specs if spec.kind in MEMORY]
    memory, there = sum(spec.capacity_bytes for spec in in_memory), psutil.virtual_memory().total
    if memory > there:
        kinds = " and ".join(dict.fromkeys(spec.kind for spec in in_memory))
        raise UsageError(
            f"the {kinds} tiers may take {write_size(memory)}, this machine has {write_size(there)} of memory: make them smaller"
        )


def written_back(specs: Sequence[TierSpec]) -> tuple[int, ...]:
    """Which tiers get what the one above gives up. Raises UsageError where there is none that learns what it gives up."""
    back = tuple(number for number, spec in enumerate(specs) if spec.write == "back")
    for number in back:
        above = specs[number - 1].kind if number else "no"
        if above not in OWN:
            raise UsageError(
                f"write=back: the {specs[number].kind} tier stands below {above} tier"
                f"{' that netgain evicts from' if number else ''}, so nothing would ever get there: name a dram, shm or disk "
                "tier before it, or leave write=back out"
            )
    return back


def _dram(spec: TierSpec, staging: Staging) -> Medium:
    return DramMedium(Pinning(POLICIES[spec.eviction](spec.capacity_bytes)))


def folder_for(spec: TierSpec) -> Path:
    """The folder of a tier that is one."""
    return folder_of(spec.where) if spec.kind == "shm" else Path(spec.where).expanduser()


def _disk(spec: TierSpec, staging: Staging) -> Medium:
    eviction = Pinning(POLICIES[spec.eviction](spec.capacity_bytes))
    options = DiskOptions(durable=spec.durable, hands_down=spec.hands_down)
    return DiskMedium(folder_for(spec), eviction, options, staging)


def _shm(spec: TierSpec, staging: Staging) -> Medium:
    check_folder(folder_for(spec), spec.capacity_bytes)
    return _disk(msgspec.structs.replace(spec, durable=False), staging)  # a power cut takes it all


def _valkey(spec: TierSpec, staging: Staging) -> Medium:
    from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions  # an extra

    options = RemoteOptions(ttl_s=spec.ttl_s, capacity=spec.capacity_bytes or None)
    if spec.prefix is not None:
        options = msgspec.structs.replace(options, prefix=spec.prefix)
    medium = RemoteMedium(spec.where, options, staging)
    return BoundedMedium(medium, spec.capacity_bytes) if spec.capacity_bytes else medium


def _s3(spec: TierSpec, staging: Staging) -> Medium:
    from netgain.serving.tiers.objects import ObjectsMedium, ObjectsOptions  # an extra

    settings = {"endpoint": spec.endpoint, "region": spec.region}
    options = ObjectsOptions(
        settings={name: value for name, value in settings.items() if value is not None},
        allow_http=(spec.endpoint or "").startswith("http://"),
    )
    if spec.prefix is not None:
        options = msgspec.structs.replace(options, prefix=spec.prefix)
    medium = ObjectsMedium(spec.where, options)
    if not spec.capacity_bytes:
        return medium
    return BoundedMedium(medium, spec.capacity_bytes, BoundedOptions(relist_s=LIST_BUCKET_S))


_MEDIA: Mapping[str, Callable[[TierSpec, Staging], Medium]] = MappingProxyType(
    {"dram": _dram, "shm": _shm, "disk": _disk, "valkey": _valkey, "s3": _s3}
)


def _shaped(spec: TierSpec, medium: Medium, clock: Clock) -> Medium:
    if spec.bandwidth is None and not spec.latency:
        return medium
    rate = spec.bandwidth or 1e15
    return ShapedMedium(medium, clock, ShapedLink(spec.latency, rate), ShapedLink(spec.latency, rate))

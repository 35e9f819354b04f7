"""The servers of the experiment: the same model, the same little room on the device, and what differs between them."""

from pathlib import Path

from netgain.cost import quantity
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.deciding.kv.settings import BLOCK_TOKENS, HEARTBEAT_S, Settings
from netgain.deciding.kv.steps import DEVICE, DISK, DRAM, LOAD, OFF, SERVERS


def servers(settings: Settings, folder: Path) -> dict[str, LaunchedServer]:
    """Not yet started, in the order in which they are to be. `folder` is where the disk tier lies."""
    return {
        name: launched_netgain(name, flags(name, settings, folder), settings.output / f"{name}.log") for name in SERVERS
    }


def flags(name: str, settings: Settings, folder: Path) -> tuple[str, ...]:
    """Of `netgain serve` for one of them."""
    common = (
        settings.model,
        *("--speculation", "none"),
        *("--set", f"engine.cache.block_tokens={BLOCK_TOKENS}"),
        *("--set", f"engine.cache.kv_tokens={settings.room_tokens}"),
        *("--set", f"fleet.heartbeat_s={HEARTBEAT_S}"),
        *("--set", "engine.step_cost.refresh=never"),  # an idle server would measure while another one is measured
    )
    dram = ("--kv-tier", f"dram:{_size(settings.dram)}{_link(settings)}")
    own = {
        OFF: ("--set", "engine.cache.prefix_caching=false"),
        DEVICE: (),
        DRAM: (*dram, "--kv-policy", "measured"),
        DISK: ("--kv-tier", f"disk:{folder}:{_size(settings.disk)}{_link(settings)}", "--kv-policy", "measured"),
        LOAD: (*dram, "--kv-policy", "always"),
    }
    return (*common, *own[name], *(part for one in settings.serve_flags for part in ("--set", one)))


def _link(settings: Settings) -> str:
    shaped = []
    if settings.bandwidth is not None:
        shaped.append(f"bandwidth={_plain(quantity.bandwidth(settings.bandwidth).value / 1e6)}MB/s")
    if settings.latency is not None:
        shaped.append(f"latency={_plain(quantity.duration(settings.latency).value * 1e3)}ms")
    return f"?{'&'.join(shaped)}" if shaped else ""


def _size(text: str) -> str:
    return f"{_plain(quantity.size(text).value / 2**20)}MiB"


def _plain(number: float) -> str:
    """Without an exponent, which tiers do not read."""
    return f"{number:.6f}".rstrip("0").rstrip(".")

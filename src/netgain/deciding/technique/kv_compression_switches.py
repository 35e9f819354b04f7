"""How netgain is told to code the KV that it keeps beyond the device. What other engines' codecs would save on a model is
measured by nobody here, so nothing is predicted for them, and they have no switch."""

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError


def compression_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has `codec`, in netgain's names. The tiers themselves are switched on apart (tiering_switches.py). Raises
    UsageError for another engine."""
    if engine != "netgain":
        raise UsageError(f"codecs for KV have no switch for {engine!r}; known are netgain")
    return SwitchOn(engine="netgain", flags=("--set", f"engine.kv.codec={setting['codec']}"), checked_with=("0.1.0",))

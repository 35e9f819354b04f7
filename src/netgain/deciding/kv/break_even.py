"""From which length of prefix on loading beats computing, by link: both tiers as requests saw them, and links of given shapes."""

from collections.abc import Mapping, Sequence

from netgain.cost.link import LinkFit
from netgain.cost.load_break_even import break_even
from netgain.cost.step_cost import StepCost
from netgain.deciding.decide.server import whole_number
from netgain.deciding.kv.outcome import LinkBreakEven, Step
from netgain.deciding.kv.settings import BLOCK_TOKENS
from netgain.measuring.observe.window import ServerWindow

SHAPED = (20e6, 50e6, 200e6, 1000e6)
SHAPED_LATENCY_S = 200e-6
LONGEST = 2048
_WARM = {
    "warm-dram": ("dram", "DRAM tier"),
    "warm-disk": ("disk", "disk tier"),
}  # by step: its side, and what to call it
_LATENCY = "netgain_kv_tier_load_latency_seconds"


def break_evens(
    steps: Sequence[Step],
    windows: Mapping[str, Mapping[str, Sequence[ServerWindow]]],
    cost: StepCost | None,
    told: Mapping[str, str],
) -> tuple[LinkBreakEven, ...]:
    """Nothing where the cost of steps, or what a token's KV takes, is not known. `windows`: by step and server; `told`: what the
    servers say of themselves. A tier from which nothing was loaded is left out."""
    token_bytes = whole_number(told.get("kv_token_bytes"))
    if cost is None or token_bytes is None:
        return ()
    longest = min(LONGEST, whole_number(told.get("max_model_len")) or LONGEST)
    links: list[tuple[str, float, float, float]] = []
    for step in steps:
        side, name = _WARM.get(step.name, (None, ""))
        role = next((role for role in step.roles if role.name == side), None)
        if role is None or role.loads is None or role.loads.bytes_per_s is None:
            continue
        latency_s = _latency_s(windows.get(step.name, {}).get(role.server, ()))
        lookup_s = 0.0 if role.overhead is None else role.overhead.lookup_s or 0.0
        links.append((f"{name}, as loads were waited for", latency_s, role.loads.bytes_per_s, lookup_s))
    links += [(f"shaped to {rate / 1e6:g} MB/s", SHAPED_LATENCY_S, rate, 0.0) for rate in SHAPED]
    found = []
    for name, latency_s, rate, lookup_s in links:
        even = break_even(
            LinkFit(latency_s, rate, 0.0, 1),
            cost,
            token_bytes,
            longest,
            block_tokens=BLOCK_TOKENS,
            chunk_tokens=whole_number(told.get("max_batch_tokens")),
            lookup_s=lookup_s,
        )
        found.append(
            LinkBreakEven(
                link=name,
                latency_s=latency_s + lookup_s,
                bytes_per_s=rate,
                tokens=even.tokens,
                longest=even.longest,
                says=f"never, up to {even.longest}" if even.word == "never" else even.word,
            )
        )
    return tuple(found)


def _latency_s(windows: Sequence[ServerWindow]) -> float:
    """As the server learnt it; 0 where it did not tell latency and bandwidth apart, which leaves all to the bandwidth."""
    return max((gauge.most for window in windows for gauge in window.gauges.get(_LATENCY, ())), default=0.0)

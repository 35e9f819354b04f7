"""Requests of an experiment on KV tiers as its servers would have recorded them, with planted times and hits."""

import re
from collections.abc import Callable

import msgspec
import pytest

from netgain.deciding.kv.asking import Seen
from netgain.deciding.kv.conduct import Trial
from netgain.deciding.kv.page_cache import Forgotten
from netgain.deciding.kv.steps import STEPS
from netgain.ledger.records import KVReuse
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.window import ServerWindow, observed

PROMPT = 400
AFTER = """# TYPE netgain_kv_tier_hits_total counter
netgain_kv_tier_hits_total{replica="r",tier="dram"} 50.0
# TYPE netgain_kv_tier_misses_total counter
netgain_kv_tier_misses_total{replica="r",tier="dram"} 2.0
# TYPE netgain_kv_tier_loaded_bytes_total counter
netgain_kv_tier_loaded_bytes_total{replica="r",tier="dram"} 1.0e+09
# TYPE netgain_kv_tier_loaded_seconds_total counter
netgain_kv_tier_loaded_seconds_total{replica="r",tier="dram"} 0.5
# TYPE netgain_kv_tier_load_seconds_p95 gauge
netgain_kv_tier_load_seconds_p95{replica="r",tier="dram"} 0.02
# TYPE netgain_kv_loaded_tokens_total counter
netgain_kv_loaded_tokens_total{replica="r"} 300.0
# TYPE netgain_kv_wasted_tokens_total counter
netgain_kv_wasted_tokens_total{replica="r"} 100.0
# TYPE netgain_kv_loads_cut_total counter
netgain_kv_loads_cut_total{replica="r"} 0.0
"""
BEFORE = re.sub(r" [\d.e+]+$", " 0.0", AFTER, flags=re.MULTILINE)


def reuse(**values) -> KVReuse:
    """A load that was predicted to be sooner, and came 10 % later than predicted."""
    told = {
        "why": "load",
        "found_tokens": 384,
        "chosen_tokens": 384,
        "loaded_tokens": 384,
        "bytes": 8_000_000,
        "source": "dram",
        "lookup_s": 0.001,
        "waited_s": 0.01,
        "warm_s": 0.02,
        "full_s": 0.2,
        "actual_s": 0.022,
    }
    return KVReuse(**(told | values))


@pytest.fixture
def seen(make_record) -> Callable[..., Seen]:
    def build(
        step: str,
        role: str,
        group: int,
        ttft_s: float,
        *,
        repeat: int = 0,
        cached: int = 0,
        kv: KVReuse | None = None,
        output: tuple[int, ...] = (1, 2, 3),
        error: str | None = None,
    ) -> Seen:
        record = make_record(f"p{group}", prefill_s=ttft_s, gap_s=0.0, tokens=3, output=output, error=error)
        if record.server is not None:
            server = msgspec.structs.replace(record.server, prompt_tokens=PROMPT, cached_tokens=cached, kv=kv)
            record = msgspec.structs.replace(record, server=server)
        return Seen(step=step, role=role, repeat=repeat, group=group, record=record)

    return build


@pytest.fixture
def window() -> ServerWindow:
    """A server's counters over a step."""
    found = observed((read_exposition(BEFORE, 0.0), read_exposition(AFTER, 1.0)))
    assert found is not None
    return found


@pytest.fixture
def trial(seen, window) -> Callable[..., Trial]:
    """A whole experiment of two repeats in which tiers take `cold` times as long where nothing is found, and loading `warm`
    times; prompts differ by a little."""

    def build(*, cold: float = 1.0, warm: float = 0.2, policy: float = 1.0, **values) -> Trial:
        found, group = [], 0
        for repeat in range(2):
            for plan in STEPS:
                for prompt in range(4):
                    for place, role in enumerate(plan.roles):
                        whole_s = 0.2 * (1.0 + 0.01 * ((7 * prompt + 3 * place + repeat) % 5))
                        tiered = role.server in ("dram", "disk", "load")
                        hit = tiered and plan.warm_from is not None
                        factor = (warm * (policy if role.name == "dram" else 1.0)) if hit else cold if tiered else 1.0
                        kv = reuse() if hit else KVReuse(why="nothing_found", lookup_s=0.001) if tiered else None
                        cached = 384 if hit else 0
                        found.append(
                            seen(plan.name, role.name, group, factor * whole_s, repeat=repeat, cached=cached, kv=kv)
                        )
                    group += 1
        told = {
            "seen": tuple(found),
            "windows": {plan.name: {"dram": (window, window)} for plan in STEPS},
            "forgotten": (Forgotten(files=8, resident=0),) * 2,
            "repeats": 2,
            "late": 0,
            "asked": len(found),
        }
        return Trial(**(told | values))

    return build

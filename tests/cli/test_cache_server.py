"""What `netgain cache stats URL` makes of a server's metrics."""

import io

from rich.console import Console

from netgain.cli.cache_server import show_server, use_of
from netgain.measuring.observe.exposition import read_exposition

METRICS = """# TYPE netgain_kv_lookups_total counter
netgain_kv_lookups_total{replica="0"} 4
# TYPE netgain_kv_wasted_tokens_total counter
netgain_kv_wasted_tokens_total{replica="0"} 32
# TYPE netgain_kv_wasted_bytes_total counter
netgain_kv_wasted_bytes_total{replica="0"} 2097152
# TYPE netgain_kv_tier_hits_total counter
netgain_kv_tier_hits_total{replica="0",tier="disk"} 5
netgain_kv_tier_hits_total{replica="1",tier="disk"} 6
# TYPE netgain_kv_tier_refused_total counter
netgain_kv_tier_refused_total{reason="torn",replica="0",tier="disk"} 2
netgain_kv_tier_refused_total{reason="torn",replica="1",tier="disk"} 1
netgain_kv_tier_refused_total{reason="no_key",replica="0",tier="disk"} 4
netgain_kv_tier_refused_total{reason="foreign",replica="0",tier="disk"} 0
netgain_kv_tier_refused_total{reason="torn",replica="0",tier="valkey"} 9
# TYPE netgain_kv_tier_unwritten_total counter
netgain_kv_tier_unwritten_total{reason="queue_full",replica="0",tier="disk"} 7
netgain_kv_tier_unwritten_total{reason="full",replica="1",tier="disk"} 1
# TYPE netgain_kv_tier_capacity_bytes gauge
netgain_kv_tier_capacity_bytes{replica="0",tier="disk"} 3145728
# TYPE netgain_kv_tier_bytes gauge
netgain_kv_tier_bytes{replica="0",tier="disk"} 1048576
# TYPE netgain_kv_tier_notices gauge
netgain_kv_tier_notices{replica="0",tier="disk"} 1
# TYPE netgain_kv_tier_unread_total counter
netgain_kv_tier_unread_total{reason="timeout",replica="0",tier="disk"} 0
"""


def test_refusals_are_told_by_reason() -> None:
    """They were summed over reasons: a forged object and one of an old vault looked the same."""
    use = use_of("http://x", read_exposition(METRICS, 0.0))
    tier = use.tiers["disk"]
    assert tier.refused == 7
    assert tier.refused_by == {"torn": 3, "no_key": 4}
    assert tier.unwritten_by == {"queue_full": 7, "full": 1}
    assert tier.unread_by == {}
    assert (use.wasted_tokens, use.wasted_bytes) == (32, 2 << 20)
    shown = io.StringIO()
    show_server(use, Console(file=shown, width=200))
    assert "disk: refused: 4 no key, 3 torn" in shown.getvalue()
    assert "disk: not stored: 1 full, 7 queue full" in shown.getvalue()
    assert "32 (2 MiB) came and were not used" in shown.getvalue()
    assert "1 MiB of 3 MiB" in shown.getvalue()
    assert "disk: its server's own limit" in shown.getvalue()
    assert "not read:" not in shown.getvalue()

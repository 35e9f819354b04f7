"""`netgain serve` with a folder for KV: a second server loads what a killed one stored, and says so to the client, in the record
and in the metrics."""

import signal
import time
from pathlib import Path
from typing import Any


def test_a_server_loads_what_a_killed_one_stored(start_server: Any, chain_model: Any, tmp_path: Path) -> None:
    options = [
        str(chain_model.folder),
        *("--kv-tier", f"disk:{tmp_path / 'kv'}:16MiB", "--kv-policy", "always"),
        *("--set", "engine.model.kernels=torch", "--set", "engine.cache.block_tokens=8"),
        *("--set", "fleet.heartbeat_s=0.1", "--set", "engine.cache.kv_tokens=512"),
    ]
    prompt = "the same beginning again and again s"
    with start_server(*options) as server:
        first = server.ask(False, prompt, max_tokens=9).json
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "loaded_tokens": 0}
        deadline = time.monotonic() + 30
        while len(list((tmp_path / "kv").rglob("*.kv"))) < len(prompt) // 8:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(30)
    with start_server(*options) as server:
        assert any("policy always" in line for line in server.lines)
        answer = server.ask(False, prompt, max_tokens=9, netgain={"record": True}).json
        assert answer["choices"] == first["choices"]
        loaded = answer["usage"]["prompt_tokens_details"]["loaded_tokens"]
        assert loaded >= 32
        record = answer["netgain"]
        assert (record["kv"]["why"], record["kv"]["loaded_tokens"], record["kv"]["source"]) == (
            "always",
            loaded,
            "disk",
        )
        assert record["stages"]["kv_load"] > 0
        assert record["stages"]["cache_lookup"] > 0
        time.sleep(0.3)  # the next heartbeat
        assert server.metric("netgain_kv_loaded_tokens_total") == loaded
        assert server.metric("netgain_kv_tier_hits_total") >= loaded // 8
        assert server.metric("netgain_kv_load_tokens_sum") == loaded
        assert server.stop() == 0

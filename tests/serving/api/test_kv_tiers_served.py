"""`netgain serve` with a folder for KV: a second server loads what a killed one stored, and says so to the client, in the record
and in the metrics."""

import asyncio
import signal
from pathlib import Path
from typing import Any

from netgain.deciding.decide.narrate import Silence
from netgain.measuring.quality.measure import QualityAsk, measure_quality
from netgain.measuring.quality.texts import Text
from tests.waiting import PATIENCE_S, wait_for


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
        wait_for(lambda: len(list((tmp_path / "kv").rglob("*.kv"))) >= len(prompt) // 8)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE_S)
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
        wait_for(lambda: server.metric("netgain_kv_loaded_tokens_total") >= loaded)  # with the next heartbeat
        assert server.metric("netgain_kv_loaded_tokens_total") == loaded
        assert server.metric("netgain_kv_tier_hits_total") >= loaded // 8
        assert server.metric("netgain_kv_load_tokens_sum") == loaded
        assert server.stop() == 0


def test_quality_of_lossy_tiers_is_measured_on_kv_that_was_loaded(
    start_server: Any, chain_model: Any, tmp_path: Path
) -> None:
    """Both servers are scored on the second halves of the texts, this one behind first halves that passed through its codec."""
    options = [
        str(chain_model.folder),
        *("--set", "engine.model.kernels=torch", "--set", "engine.cache.block_tokens=8"),
        *("--set", "fleet.heartbeat_s=0.1", "--set", "engine.cache.kv_tokens=512"),
    ]
    lossy = [
        *("--kv-tier", f"disk:{tmp_path / 'kv'}:16MiB?codec=int4&codec_when=always"),
        *("--set", "engine.kv.codec_forced=true"),
    ]
    texts = tuple(
        Text(name=f"text {number}", category="x", prompt=f"{number} the same beginning again and again and again s")
        for number in range(4)
    )
    short = Text(name="short", category="x", prompt="too short")
    with start_server(*options) as plain, start_server(*options, *lossy) as coded:
        ask = QualityAsk(url=plain.url, against=coded.url, texts="none", texts_given=(*texts, short), answers=0)
        found = asyncio.run(measure_quality(ask, Silence()))
        answer = coded.post("/v1/completions", prompt="x y z", netgain={"from_tiers": True, "logprobs_from": 1})
    candidate, apart = found.candidate, found.comparison.divergence
    assert candidate is not None
    assert candidate.loaded is not None
    assert candidate.loaded.loaded_tokens >= 4 * 16
    assert candidate.loaded.codecs == "int4"
    assert found.baseline.loaded is None
    assert apart is not None
    assert apart.kl.texts == 4
    assert apart.other_tokens == ()
    assert found.baseline.perplexity.perplexity.positions == candidate.perplexity.perplexity.positions
    assert [one.name for one in candidate.unscored] == ["short"]
    assert answer.status == 400
    assert "logprobs_from" in answer.json["error"]["message"]


def test_a_server_that_is_stopped_hands_down_what_its_memory_had(
    start_server: Any, chain_model: Any, tmp_path: Path
) -> None:
    options = [
        *(str(chain_model.folder), "--kv-policy", "always"),
        *("--kv-tier", "dram:16MiB", "--kv-tier", f"disk:{tmp_path / 'kv'}:16MiB?write=back"),
        *("--set", "engine.model.kernels=torch", "--set", "engine.cache.block_tokens=8"),
        *("--set", "engine.cache.kv_tokens=512", "--set", "engine.kv.close_s=60", "--set", "fleet.stop_timeout_s=75"),
    ]
    prompt = "the same beginning again and again s"
    with start_server(*options) as server:
        first = server.ask(False, prompt, max_tokens=9).json
        assert not list((tmp_path / "kv").rglob("*.kv"))
        assert server.stop() == 0
    assert len(list((tmp_path / "kv").rglob("*.kv"))) >= len(prompt) // 8
    with start_server(*options) as server:
        answer = server.ask(False, prompt, max_tokens=9).json
        assert answer["choices"] == first["choices"]
        assert answer["usage"]["prompt_tokens_details"]["loaded_tokens"] >= 32

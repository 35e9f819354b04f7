"""What a server prints at its start and end: what it really uses, where that is less than what was asked for."""

import psutil


def test_a_server_says_what_it_uses_instead_of_what_was_asked(start_server, chain_model):
    settings = ("model.kernels=torch", "model.threads=1000", "scheduler.max_model_len=100000", "cache.kv_tokens=1024")
    options = [part for setting in settings for part in ("--set", f"engine.{setting}")]
    with start_server(str(chain_model.folder), *options) as server:
        cores = len(psutil.Process().cpu_affinity())
        assert any(f", cpu, {cores} threads" in line for line in server.lines)
        (note,) = [line for line in server.lines if line.startswith("note: ")]
        assert f"engine.model.threads is 1000, more than the cores available to this process: it uses {cores}" in note
        assert "engine.scheduler.max_model_len is 100,000, the limit of the model is 4,096: 4,096 is used" in note
        assert "the KV cache holds 1,024 tokens" in note
        assert any("up to 1,024 per request" in line for line in server.lines)
        (card,) = server.send("/v1/models").json["data"]
        assert card["max_model_len"] == card["netgain"]["max_length"] == 1024
        assert card["netgain"]["settings_note"] == note.removeprefix("note: ")
        assert server.stop() == 0
        assert [line.split(": ", 1)[1] for line in server.ending()] == ["draining 0 requests (at most 30 s)", "ended"]

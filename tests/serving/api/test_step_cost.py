"""A server measures its step cost once while it is idle, keeps it, answers requests meanwhile, and the next start reads it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.waiting import wait_for


def test_the_next_server_of_the_same_model_measures_nothing(
    start_server: Any, chain_model: Any, tmp_path: Path
) -> None:
    settings = (
        "engine.model.kernels=torch",
        "engine.model.threads=1",
        "engine.scheduler.max_model_len=64",  # few compositions
        "engine.scheduler.max_batch_tokens=32",
        "engine.cache.kv_tokens=2048",
        "engine.step_cost.idle_s=0",
        "fleet.heartbeat_s=0.1",
    )
    options = [str(chain_model.folder), *(item for setting in settings for item in ("--set", setting))]
    cache = {"NETGAIN_CACHE": str(tmp_path)}
    with start_server(*options, **cache) as server:
        assert server.send("/v1/models").json["data"][0]["netgain"]["step_cost"] == "not measured yet"
        answers = []

        def measured() -> bool:
            answers.append(server.ask(False, "s", max_tokens=9).json["choices"][0]["text"])
            return bool(list(tmp_path.glob("step-cost/*.json")))

        wait_for(measured, every_s=0.2)
        assert set(answers) == {"short answer"}
        wait_for(lambda: "netgain_step_cost_age_seconds" in server.send("/metrics").body.decode())  # by a heartbeat
        assert server.metric("netgain_step_cost_cached") == 0
        assert server.metric("netgain_step_cost_age_seconds") < 300
        served = server.send("/netgain/step-cost?batch=16").json
    [file] = tmp_path.glob("step-cost/*.json")
    kept = json.loads(file.read_text())
    assert served == kept["cost"]
    assert served["subject"]["weights"]
    with start_server(*options, "--set", "engine.step_cost.refresh=never", **cache) as server:
        told = server.send("/v1/models").json["data"][0]["netgain"]["step_cost"]
        at = datetime.fromtimestamp(kept["cost"]["measured_at"], UTC).isoformat(timespec="seconds")
        assert told == f"kept from an earlier start, measured {at}"
        assert server.metric("netgain_step_cost_cached") == 1
        assert server.send("/netgain/step-cost?batch=16").json == served
        record = server.ask(False, "s", max_tokens=9, netgain={"record": True}).json["netgain"]
        assert record["own_s"] > 0, "split from the first request on"
        fresh = server.send("/netgain/step-cost?batch=16&fresh=true&budget_s=0.2").json
        assert fresh["measured_at"] > served["measured_at"]
    assert json.loads(file.read_text())["cost"] == fresh

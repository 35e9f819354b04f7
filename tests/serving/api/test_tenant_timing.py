"""What one tenant has computed makes nothing sooner for another, on the clock of a client (vllm-project/vllm#16016: a cached
prefix can be told by the time to the first token)."""

import json
import statistics
import time

from netgain.serving.api.keys import KeyLimits, new_key

ROUNDS = 7


def test_a_prompt_that_another_tenant_has_asked_takes_as_long_as_one_that_nobody_has(
    start_server, default_model_path, tmp_path
):
    keys = {name: new_key(tmp_path / "keys.json", name, KeyLimits()) for name in ("acme", "other")}
    options = ("--api-keys", str(tmp_path / "keys.json"), "--kv-tier", "dram:256MiB", "--kv-policy", "always")
    took_s = {"new": [], "own": [], "other's": [], "new to both": []}
    with start_server(str(default_model_path), *options, "--set", "engine.step_cost.refresh=never") as server:

        def ask(tenant: str, text: str) -> float:
            body = json.dumps({"prompt": text, "temperature": 0, "max_tokens": 1}).encode()
            began_s = time.monotonic()
            answer = server.send("/v1/completions", body, headers={"Authorization": f"Bearer {keys[tenant]}"})
            assert answer.status == 200
            return time.monotonic() - began_s

        for tenant in keys:
            ask(tenant, "warm-up " * 20)
        for number in range(ROUNDS):
            secret, unknown = (f"{name} {number}: " + "the merger is signed on Friday, " * 32 for name in ("a", "b"))
            took_s["new"].append(ask("acme", secret))
            took_s["own"].append(ask("acme", secret))
            took_s["other's"].append(ask("other", secret))
            took_s["new to both"].append(ask("other", unknown))

    def ratio(name: str, to: str) -> float:
        """Of neighbours in time, since what else the machine does changes from round to round."""
        return statistics.median(one / other for one, other in zip(took_s[name], took_s[to], strict=True))

    assert ratio("own", "new") < 0.4, "a prefix that is found must show, or this test could not fail"
    assert 0.5 < ratio("other's", "new to both") < 2.0

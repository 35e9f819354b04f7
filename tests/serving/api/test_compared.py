"""What netgain's servers tell of themselves is all that a comparison of two of them needs."""

import json
from pathlib import Path

import pytest

from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.decide.narrate import Silence
from netgain.errors import UsageError


@pytest.fixture
def settings(tmp_path: Path):
    lines = [
        {"id": f"p{n}", "category": "c", "max_tokens": 3, "prompt": " ".join("abcde"[: n % 5 + 1])} for n in range(12)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))

    def settings(baseline: str, candidate: str, **fields: object) -> Settings:
        return Settings(
            output=tmp_path / "out",
            baseline=SideAsked(sources=(baseline,)),
            candidate=SideAsked(sources=(candidate,)),
            workload=str(tmp_path / "prompts.jsonl"),
            quick=True,
            budget_s=0.1,  # as few groups as can decide anything
            **fields,
        )

    return settings


def test_two_servers_of_one_model_are_known_to_be_equal_and_answer_alike(server_options, start_server, settings):
    # too short for the probe of the cache, which takes this model long
    options = (*server_options, "--set", "fleet.hang_timeout_s=60", "--set", "engine.scheduler.max_model_len=256")
    with start_server(*options) as server, start_server(*options) as other:
        outcome = compare(settings(server.url, other.url, promises_identity=True), Silence())
    states = {row.field: row.state for row in outcome.fields}
    assert set(states.values()) == {"equal"}
    assert {"weights", "dtype", "devices", "memory", "max_running", "max_batch_tokens"} <= set(states)
    assert not [caveat for caveat in outcome.caveats if "not known" in caveat]
    verdict = outcome.analysis.verdict
    assert verdict.identity.basis == "token ids"
    assert verdict.identity.holds
    assert outcome.analysis.waterfall is not None
    assert outcome.cache_state == "every block asks under a cache salt of its own"
    checks = {check.name: check for check in verdict.checks}
    assert checks["cache state"].ok
    assert checks["restarts"].ok
    assert checks["other users of the servers"].ok


def test_another_limit_refuses_the_comparison(server, server_options, start_server, settings):
    with (
        start_server(*server_options, "--set", "engine.scheduler.max_running=4") as other,
        pytest.raises(UsageError, match=r"max_running \(2 against 4\)"),
    ):
        compare(settings(server.url, other.url), Silence())

"""The five steps on a tiny random model, as a user runs them: servers, prompts, report and exit code."""

import json

import pytest

pytest.importorskip("torch")

from netgain.cli.main import run
from netgain.deciding.kv.write import read_experiment
from tests.serving.model.conftest import tiny

__all__ = ["tiny"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_five_steps_are_measured_judged_and_reported(tiny, tmp_path, capsys, leaves_no_process):
    folder = tiny(3, max_position_embeddings=1024).folder
    output = tmp_path / "out"
    options = ["--quick", "--tokens", "256", "--prompts", "3", "--repeats", "1", "--set", "engine.model.kernels=torch"]
    code = run(["cache", "experiment", str(folder), *options, "--json", "--output", str(output)])
    told = capsys.readouterr()
    assert code in (0, 3), told.err
    outcome = read_experiment(output)
    assert json.loads(told.out)["schema"] == "netgain.kv-experiment"
    assert outcome.stopped is None
    assert outcome.wrong_answers == 0
    steps = {step.name: {role.name: role for role in step.roles} for step in outcome.steps}
    assert list(steps) == ["off", "cold", "warm-dram", "warm-disk", "mixed", "saturated"]
    assert all(role.failed == 0 for roles in steps.values() for role in roles.values())
    assert all(role.hits.found_tokens == 0 for role in (*steps["off"].values(), *steps["cold"].values()))
    always = steps["saturated"]["load"]
    assert always.hits.token_rate_beyond > 0.8
    assert always.decisions.why == {"always": 3}
    assert always.loads.waited_p99_s > 0.0
    assert steps["saturated"]["recompute"].hits.token_rate < 0.2
    assert steps["cold"]["disk"].overhead.store_bytes > 0
    (tier,) = steps["cold"]["disk"].tiers
    assert tier.tier == "disk"
    assert tier.writing.p95_s > 0.0
    page = (output / "report.html").read_text()
    assert all(claim.says.split("(")[0] in page for step in outcome.steps for claim in step.claims)
    assert not list(output.glob("kv-tier-*"))

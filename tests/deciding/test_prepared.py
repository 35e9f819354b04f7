"""A run goes on only as what it was: folder, budget and patience may differ, nothing else."""

import msgspec
import pytest

from netgain.deciding.decide.loop import decide
from netgain.deciding.decide.prepared import prepared_before, settings_tree
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.hooks import hooks_from
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.journal import first_difference
from netgain.errors import UsageError


def differs(settings, **changes):
    found = first_difference(settings_tree(settings), settings_tree(msgspec.structs.replace(settings, **changes)))
    return None if found is None else found[0]


def test_what_may_differ_when_a_run_goes_on(tmp_path):
    settings = Settings(output=tmp_path)
    assert differs(settings, output=tmp_path / "b", resume=True, budget_s=1.0, start_timeout_s=1.0) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"workload": "chat"}, "workload"),
        ({"engine": "vllm", "model": "m"}, "engine"),
        ({"starting": Starting(devices=2)}, "starting.devices"),
        ({"hooks": hooks_from({"start": "a", "stop": "b"}, "h")}, "hooks"),
    ],
)
def test_what_may_not_differ_is_named(tmp_path, changes, named):
    assert differs(Settings(output=tmp_path), **changes) == named


def test_values_of_variables_are_compared_but_not_written(tmp_path):
    trees = [
        settings_tree(
            Settings(output=tmp_path, engine="vllm", model="m", starting=Starting(environment={"HF_TOKEN": value}))
        )
        for value in ("hf_secret", "hf_other")
    ]
    assert "hf_secret" not in str(trees[0])
    assert first_difference(*trees)[0] == "starting.environment.HF_TOKEN"


def test_a_folder_that_holds_another_experiment_is_refused_before_anything_starts(tmp_path, leaves_no_process):
    (tmp_path / "blocks.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds another experiment"):
        decide(Settings(output=tmp_path, quick=True))


@pytest.mark.parametrize(
    ("content", "told"), [(None, "nothing to resume"), (b"{", "cannot be read"), (b"{}", "cannot be read")]
)
def test_a_folder_without_a_prepared_run_is_refused(tmp_path, content, told):
    if content is not None:
        (tmp_path / "prepared.json").write_bytes(content)
    with pytest.raises(UsageError, match=told):
        prepared_before(Settings(output=tmp_path, resume=True))

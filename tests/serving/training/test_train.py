"""A training from prompts to a draft that a server takes: what it writes, what a kill or Ctrl-C leaves, what it refuses."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from netgain.errors import UsageError
from netgain.serving.engine.request import SamplingParams
from netgain.serving.model.drafts.manifest import read_manifest
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.training.inspect import inspect
from netgain.serving.training.prompts import Prompt
from netgain.serving.training.train import Recipe, train
from tests.waiting import PATIENCE_S

TEXTS = ("abcabc", "who goes there", "12, 13, 14", "ab", "zz top", "the end", "once more", "x", "y", "q w e", "7", "no")
PROMPTS = tuple(Prompt(messages=({"role": "user", "content": text},)) for text in TEXTS)
SMALL = {"vocab": 200, "reply_tokens": 24, "threads": 1}
WEIGHTS = {"feature": "draft.safetensors", "medusa": "draft.safetensors", "layers": "model.safetensors"}


def make(target, out, recipe, *, resume=False, tell=lambda *_: None, prompts=PROMPTS):
    cache = out.parent / "cache"
    return train(str(target), out, prompts, recipe, cache=cache, resume=resume, tell=tell)


def in_process(target, out, recipe) -> subprocess.Popen[str]:
    """The same in a process of its own, which can be killed."""
    code = (
        "import sys; from pathlib import Path; from tests.serving.training.test_train import make; "
        "from netgain.serving.training.train import Recipe; "
        f"done = make({str(target)!r}, Path({str(out)!r}), Recipe(**{recipe!r})); sys.exit(130 if done is None else 0)"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3], text=True)


def wait_for(path: Path, process) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert process.poll() is None, "the training ended too soon"
        assert time.monotonic() < end
        time.sleep(0.02)


def drafts_of(target, draft) -> list[int]:
    config = {"model": {"source": str(target), "threads": 1}, "cache": {"kv_tokens": 512}}
    config["speculation"] = {"method": "draft", "draft": str(draft), "k": 3}
    with LLM(EngineConfig.model_validate(config)) as llm:
        (answer,) = llm.generate([[1, 5, 40]], SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True))
        assert llm.built.engine.stats().draft_faults == 0
    return answer.trace.drafts.drafted


@pytest.mark.parametrize("kind", ["feature", "medusa", "layers"])
def test_a_draft_learns_and_is_served(tiny, tmp_path, kind):
    target = tiny(num_hidden_layers=3).folder
    losses, threads = [], torch.get_num_threads()

    def tell(stage, share, trained):
        assert 0 <= share <= 1
        if trained is not None:
            losses.append(trained.losses[0])

    manifest = make(target, tmp_path / "out", Recipe(kind=kind, steps=60, **SMALL), tell=tell)
    assert torch.get_num_threads() == threads
    assert losses[-1] < 0.8 * losses[0]
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest.kind == kind
    assert manifest.recipe["steps"] == 60
    assert manifest.acceptance is not None
    assert list(manifest.acceptance) == sorted(manifest.acceptance, reverse=True)
    assert drafts_of(target, tmp_path / "out")[0] > 0
    facts = inspect(tmp_path / "out")
    assert facts.finished
    assert facts.file_bytes == (tmp_path / "out" / WEIGHTS[kind]).stat().st_size


def test_replies_are_generated_once(tiny, tmp_path):
    target = tiny().folder
    make(target, tmp_path / "one", Recipe(kind="medusa", steps=2, **SMALL))
    (kept,) = (tmp_path / "cache" / "replies").iterdir()
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(lines) == len(PROMPTS)
    assert {line["greedy"] for line in lines} == {True, False}
    lines[-1]["tokens"] = [5, 6, 7]  # what no target would say shows whether it is asked again
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"prompt": [1, 2')
    manifest = make(target, tmp_path / "two", Recipe(kind="medusa", steps=2, **SMALL))
    assert manifest.recipe["replies"] == len(PROMPTS)
    assert json.loads(kept.read_text().splitlines()[-1])["tokens"] == [5, 6, 7]


def test_a_training_that_was_killed_ends_as_if_it_had_not_been(tiny, tmp_path):
    target = tiny().folder
    recipe = {"kind": "feature", "steps": 40, "checkpoint_steps": 5, **SMALL}
    make(target, tmp_path / "whole", Recipe(**recipe))
    with in_process(target, tmp_path / "killed", recipe) as process:
        wait_for(tmp_path / "killed" / "draft.json", process)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(UsageError, match="--resume goes on"):
        make(target, tmp_path / "killed", Recipe(**recipe))
    assert drafts_of(target, tmp_path / "killed")[0] > 0
    make(target, tmp_path / "killed", Recipe(**recipe), resume=True)
    whole, resumed = (load_file(tmp_path / name / "draft.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not (tmp_path / "killed" / "training").exists()


def test_ctrl_c_leaves_a_draft_that_can_be_used_and_resumed(tiny, tmp_path):
    target, out = tiny().folder, tmp_path / "out"
    recipe = {"kind": "medusa", "steps": 10**6, "checkpoint_steps": 1, **SMALL}
    with in_process(target, out, recipe) as process:
        wait_for(out / "draft.json", process)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert read_manifest(out).recipe["steps"] > 0
    assert not inspect(out).finished
    assert drafts_of(target, out)[0] > 0
    with pytest.raises(UsageError, match=r"begun with vocab 200, now it is 100"):
        make(target, out, Recipe(**{**recipe, "vocab": 100}), resume=True)


def test_what_cannot_be_resumed_or_overwritten_is_said(tiny, tmp_path):
    target = tiny().folder
    with pytest.raises(UsageError, match="no training to resume"):
        make(target, tmp_path / "out", Recipe(kind="medusa", steps=2, **SMALL), resume=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        make(target, tmp_path / "out", Recipe(kind="medusa", steps=2, **SMALL))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kind": "layers", "layers": "0,9"}, "layer 9 is none of the model's, which are 0 to 1"),
        ({"kind": "layers", "layers": "first"}, "no list of layers"),
        ({"kind": "feature", "layers": "0"}, "kind feature has no use for it"),
        ({"reply_tokens": 300}, "do not fit"),
    ],
)
def test_recipes_that_do_not_fit_the_target_are_refused(tiny, tmp_path, changes, why):
    recipe = Recipe(**{"kind": "feature", "steps": 2, **SMALL, **changes})
    with pytest.raises(UsageError, match=why):
        make(tiny().folder, tmp_path / "out", recipe)

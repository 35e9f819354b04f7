"""What a draft is worth, measured in the engine: counts that add up, and the same replies for the proposers beside it."""

import pytest

from netgain.errors import UsageError
from netgain.serving.model.drafts.manifest import read_manifest
from netgain.serving.training.evaluate import TEMPERATURES, evaluate
from netgain.serving.training.prompts import Prompt, split
from netgain.serving.training.train import Recipe, train
from tests.serving.runtime.heads import write_head

PROMPTS = tuple(Prompt(text=text) for text in ("abcabcabc", "one two one two", "12, 13, 14", "x", "y y y", "the end"))


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_steps_and_tokens_add_up(tiny, tmp_path, kind):
    target = tiny(num_hidden_layers=3)
    write_head(tmp_path / "head", target.folder, kind, taps=(0, 2))
    found = evaluate(str(target.folder), tmp_path / "head", PROMPTS, max_tokens=30, threads=1)
    assert found.k == 3
    assert not found.held_out_only
    assert {row.proposer for row in found.rows} == {kind, "ngram", "suffix"}
    for temperature in TEMPERATURES:
        rows = [found.row(name, temperature) for name in (kind, "ngram", "suffix")]
        assert len({row.tokens for row in rows}) == 1  # all of the same replies
        for row in rows:
            # a step commits what was accepted and one token more, but for the last, which may end within the accepted
            assert 0 <= row.steps + sum(row.accepted) - row.tokens <= len(PROMPTS)
            assert row.committed_per_step == pytest.approx(row.tokens / row.steps)
            assert list(row.accepted) == sorted(row.accepted, reverse=True)
        assert rows[0].drafted[0] > 0


def test_a_trained_draft_is_better_than_an_untrained_one_and_sees_only_held_out_prompts(tiny, tmp_path):
    target = tiny(num_hidden_layers=3, initializer_range=0.05)
    prompts = tuple(Prompt(text=f"{number} and {number + 1}") for number in range(40))
    recipe = Recipe(kind="feature", steps=25, vocab=300, reply_tokens=24, threads=1)
    cache = tmp_path / "cache"
    train(str(target.folder), tmp_path / "made", prompts, recipe, cache=cache, resume=False, tell=lambda *_: None)
    write_head(tmp_path / "head", target.folder, "feature", taps=(0, 2))
    good = evaluate(str(target.folder), tmp_path / "made", prompts, max_tokens=24, threads=1)
    assert good.held_out_only
    assert good.prompts == len(split(prompts)[1]) > 0
    poor = evaluate(str(target.folder), tmp_path / "head", prompts, max_tokens=24, threads=1)
    assert good.row("feature", 0.0).committed_per_step > poor.row("feature", 0.0).committed_per_step
    # what training said of itself is what the engine finds: greedy replies of the same prompts, up to places near their ends
    shares = good.row("feature", 0.0).acceptance
    assert shares[0] == pytest.approx(read_manifest(tmp_path / "made").acceptance[0], abs=0.08)


def test_prompts_that_were_all_learnt_from_leave_nothing_to_measure(tiny, tmp_path):
    target = tiny()
    prompts = (Prompt(text="the only one"),)
    recipe = Recipe(kind="medusa", steps=1, vocab=100, reply_tokens=8, threads=1)
    cache = tmp_path / "cache"
    train(str(target.folder), tmp_path / "made", prompts, recipe, cache=cache, resume=False, tell=lambda *_: None)
    with pytest.raises(UsageError, match="held out"):
        evaluate(str(target.folder), tmp_path / "made", prompts, threads=1)

"""Draft models read prompts with chunks by themselves; heads that need the target's features are refused."""

import pytest

from netgain.errors import UsageError
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.blending.selection import Deviating, Naive
from tests.serving.runtime.blending.test_engine import ask, config
from tests.serving.runtime.blending.test_join import PROMPT
from tests.serving.runtime.heads import write_head


@pytest.mark.parametrize("selection", [Naive(), Deviating(0.3), Deviating(1.0)], ids=str)
@pytest.mark.parametrize("max_batch_tokens", [32, 512])
def test_a_draft_model_beside_chunks_changes_no_token(tiny, selection, max_batch_tokens):
    target, draft = tiny(num_hidden_layers=4), tiny(seed=2, num_hidden_layers=1, hidden_size=32)
    scheduler = {"max_batch_tokens": max_batch_tokens}
    sampling = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
    with LLM(config(target.folder, scheduler=scheduler)) as llm:
        (alone_answer,) = ask(llm, selection, sampling=sampling)
    for source in (draft.folder, target.folder):
        speculation = {"method": "draft", "draft": str(source), "k": 3}
        with LLM(config(target.folder, scheduler=scheduler, speculation=speculation)) as llm:
            first, again = (ask(llm, selection, sampling=sampling)[0] for _ in range(2))
            (plain,) = llm.generate([PROMPT], sampling)
        assert first.output_ids == again.output_ids == alone_answer.output_ids
        assert sum(first.trace.drafts.drafted) > 0
    # the target drafting for itself has read the prompt whole: where all is computed anew, all it says is right
    drafts = first.trace.drafts
    assert not selection.exact or drafts.accepted == drafts.drafted
    assert plain.trace.drafts.accepted == plain.trace.drafts.drafted, "what chunks left behind is in nobody's way"


def test_heads_that_need_features_of_every_token_are_refused_beside_chunks(tiny, tmp_path):
    target = tiny(num_hidden_layers=4)
    write_head(tmp_path / "head", target.folder, "feature", taps=(0, 2))
    speculation = {"method": "draft", "draft": str(tmp_path / "head"), "k": 3}
    with pytest.raises(UsageError, match=r"trained heads .*are not computed"):
        LLM(config(target.folder, speculation=speculation))

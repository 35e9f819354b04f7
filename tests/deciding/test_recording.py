"""The baseline's traffic on a slow server: a time limit must not leave a single prompt to decide on."""

from netgain.deciding.decide.recording import answers
from netgain.deciding.experiment.conduct import Asking
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.measuring.client.options import Options
from netgain.measuring.workload.item import Item

ASKING = Asking(model="m", options=Options(timeout_s=20.0))
ITEMS = [Item(id=f"i{n}", category="c", max_tokens=50, prompt=f"p{n}") for n in range(12)]


async def test_a_slow_server_is_asked_for_as_many_prompts_as_a_verdict_needs(serve):
    """One prompt of 24 was answered in time by a vLLM on a loaded core, and six groups of it decided."""
    recorded = await answers(await serve(1), ASKING, "salt", ITEMS, 1, 0.15)
    asked = [record.item_id for record in recorded.records]
    assert len(set(asked)) == len(asked) == FEWEST_UNITS
    assert all(record.ok for record in recorded.records)


async def test_a_prompt_that_was_cut_off_is_not_asked_again_where_it_would_be_found_in_the_cache(serve):
    """The server has computed its prompt already: of llama.cpp it counted 435 of 436 tokens as found."""
    recorded = await answers(await serve(1), ASKING, "salt", ITEMS, 1, 0.15)
    asked = [int(record.item_id[1:]) for record in recorded.records]
    cut = min(set(range(len(ITEMS))) - set(asked))
    assert cut < max(asked), "the others were asked instead"
    few = await answers(await serve(1), ASKING, "salt", ITEMS[:FEWEST_UNITS], 1, 0.15)
    assert len(few.records) == FEWEST_UNITS, "where there are no others it is"


async def test_where_there_is_time_every_prompt_is_asked_once(serve):
    recorded = await answers(await serve(4), ASKING, "salt", ITEMS, 4, None)
    assert sorted(record.item_id for record in recorded.records) == sorted(item.id for item in ITEMS)

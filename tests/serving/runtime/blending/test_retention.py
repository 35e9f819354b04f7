"""Chunks are used for their retention time, counted from when they were first computed, in memory as in tiers."""

import time

from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.blending.selection import Naive
from tests.serving.runtime.blending.test_engine import alone, ask, config, in_tiers

KEPT_S = 10_000.0  # longer than any test


def aged(llm, age_s):
    """For this engine it is so much later than it is; its tiers go by the time that it is."""
    llm.built.engine.scheduler.pool.retention._unix_s = lambda: time.time() + age_s


def test_memory_gives_no_chunk_that_is_older(tiny):
    with LLM(config(tiny(num_hidden_layers=4).folder, kv={"retention_s": KEPT_S})) as llm:
        answers = []
        for age_s in (0, 0, KEPT_S + 1, KEPT_S + 1, 2 * KEPT_S, 2 * KEPT_S + 60):
            aged(llm, age_s)
            answers += ask(llm, Naive())
        assert llm.built.engine.tier_counters()["blend_memory_bytes"] > 0
    assert [answer.trace.blending.chunks_found for answer in answers] == [0, 2, 0, 2, 2, 0]
    assert [alone(answer) > 0 for answer in answers] == [True, False, True, False, False, True]
    assert len({answer.output_ids for answer in answers}) == 1


def test_a_chunk_from_a_tier_is_as_old_in_memory_as_it_was_there(tiny, tmp_path):
    folder, tier = tiny(num_hidden_layers=4).folder, f"disk:{tmp_path / 'kv'}:16MiB"
    with LLM(in_tiers(folder, tier, retention_s=KEPT_S)) as writer:
        ask(writer, Naive())
    with LLM(in_tiers(folder, tier, retention_s=KEPT_S, policy="always")) as reader:
        aged(reader, KEPT_S / 2)
        (fetched,) = ask(reader, Naive())
        aged(reader, KEPT_S + 60)
        (old,) = ask(reader, Naive())
    assert (fetched.trace.blending.chunks_fetched, alone(fetched)) == (2, 0)
    assert alone(old) > 0

"""The comparison with other engines: like is compared with like, best with best, and prompts have the length they claim."""

from pathlib import Path

import pytest

from benchmarks.peers.programs import Contender
from benchmarks.peers.prompts import items
from benchmarks.peers.ratios import figures
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.serving.model.checkpoint import open_checkpoint


def contender(engine, precision):
    label = f"{engine}_{precision}"
    program = Program(command=lambda port: ("true",), shown=("true",))
    return Contender(engine, precision, label, LaunchedServer(label, program, Path("/dev/null")))


FIELD = [contender("netgain", "int4"), contender("netgain", "bf16"), contender("a", "int4"), contender("b", "bf16")]


def test_ratios_are_above_one_where_netgain_is_better_whatever_the_direction():
    results = {
        "decode_c1": {
            "netgain_int4": [5.0, 4.0],
            "netgain_bf16": [8.0, 8.0],
            "a_int4": [10.0, 6.0],
            "b_bf16": [12.0, 4.0],
        },
        "output_c8": {"netgain_int4": [300.0], "netgain_bf16": [200.0], "a_int4": [150.0], "b_bf16": [250.0]},
    }
    found = figures(FIELD, results)
    assert found["decode_c1_netgain_int4"] == 4.5
    assert (found["decode_c1_int4_vs_a"], found["decode_c1_int4_vs_a_low"]) == (1.75, 1.5)
    assert found["decode_c1_bf16_vs_b"] == 1.0
    assert found["decode_c1_best_vs_best_peer"] == found["decode_c1_int4_vs_a"]
    assert found["decode_c1_best_peer"] in ("a_int4", "b_bf16")  # equal medians
    assert found["output_c8_best_peer"] == "b_bf16"
    assert found["output_c8_vs_best_peer"] == 1.2
    assert found["output_c8_bf16_vs_b"] == 0.8
    assert "output_c8_int4_vs_b" not in found


def test_of_several_forms_in_one_precision_the_best_is_compared():
    other = contender("netgain", "int4")
    field = [*FIELD, Contender("netgain", "int4", "netgain_other", other.server)]
    speeds = {
        "netgain_int4": [90.0],
        "netgain_other": [120.0],
        "netgain_bf16": [50.0],
        "a_int4": [60.0],
        "b_bf16": [50.0],
    }
    found = figures(field, {"prefill_512": speeds})
    assert found["prefill_512_int4_vs_a"] == 2.0
    assert found["prefill_512_best_netgain"] == "netgain_other"


def test_memory_is_a_share_of_vllms_and_start_our_own():
    vllm = contender("vllm_cpu", "bf16")
    results = {
        "start": {"netgain_int4": [4.0], "netgain_bf16": [6.0], "vllm_cpu_bf16": [90.0]},
        "rss": {"netgain_int4": [1.0], "netgain_bf16": [1.5], "vllm_cpu_bf16": [6.0]},
    }
    found = figures([*FIELD[:2], vllm], results)
    assert (found["cold_start_s"], found["rss_vs_vllm_cpu"]) == (5.0, 0.25)
    assert "start_bf16_vs_vllm_cpu" not in found


def test_without_a_peer_there_are_figures_and_no_ratios():
    found = figures(FIELD[:2], {"decode_c1": {"netgain_int4": [5.0], "netgain_bf16": [8.0]}})
    assert found == {"decode_c1_netgain_int4": 5.0, "decode_c1_netgain_bf16": 8.0}


@pytest.mark.parametrize("tokens", [16, 512])
def test_a_prompt_has_as_many_tokens_as_it_claims(default_model_path, tokens):
    prompts = items(3, tokens, 8, "seed")
    tokenizer = open_checkpoint(default_model_path).tokenizer
    assert [len(tokenizer.encode(item.prompt, start=True)) for item in prompts] == [tokens] * 3
    assert len({item.prompt for item in prompts}) == 3
    assert items(3, tokens, 8, "seed") == prompts
